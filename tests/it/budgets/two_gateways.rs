//! Two gateways on one Redis: each user has tokens for a minute, and each key dollars for a month. Streams run at once, and half of them
//! are cut.

use std::time::Duration;

use identity::api_key_file;
use request::identity::KnownKey;

use crate::support::model_calls::{Api, Call, CallResult, CallShape, End, Model, make};
use crate::support::{Client, Gateway, Redis, Response, eventually, tollgate};

/// In 10⁻⁹ USD: a token of input, a token of output, and the limit of a month.
const INPUT: u64 = 30_000;
const OUTPUT: u64 = 150_000;
const MONTH: u64 = 200_000_000;
const MINUTE: u64 = 20_000;
const STREAMS: u64 = 20;

const CONFIG: &str = "api_keys: {from: [bearer], file: api-keys.txt}
llm: {error_format: openai}
prices: {file: prices.csv}
policies:
  - name: users
    rules:
      - name: minute
        limit_keys: [header:x-user]
        algorithm: fixed_window
        algorithm_config: {limit: 20000, window: 1m, cost_source: llm_tokens, reserve: {worst: {default_output: 100}}}
  - name: keys
    rules:
      - name: month
        limit_keys: [key:id]
        expose: true
        algorithm: fixed_window
        algorithm_config: {limit: 0.20, window: month, cost_source: llm_cost, reserve: {worst: {default_output: 100}}}";

/// What a call used, or may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Used {
    tokens: u64,
    money: u64,
}

impl Used {
    fn of(input: u64, output: u64) -> Used {
        Used { tokens: input + output, money: input * INPUT + output * OUTPUT }
    }

    fn plus(self, other: Used) -> Used {
        Used { tokens: self.tokens + other.tokens, money: self.money + other.money }
    }

    fn fits(self) -> bool {
        self.tokens <= MINUTE && self.money <= MONTH
    }
}

struct Site {
    model: Model,
    gateways: [Gateway; 2],
    calls: u64,
}

const FIELDS: &str = "X-User: ann\r\nAuthorization: Bearer the-key-of-our-team\r\n";

impl Site {
    fn start(redis: &Redis) -> Site {
        let model = Model::start();
        let key = api_key_file::line(b"the-key-of-our-team", &KnownKey::new("team", "free")) + "\n";
        let prices = format!("model,input,output\nm,{},{}\n", INPUT / 1000, OUTPUT / 1000);
        let config = format!("{}{CONFIG}", redis.patient_store());
        let files = [("api-keys.txt", &*key), ("prices.csv", &*prices)];
        let gateways = [(); 2].map(|()| Gateway::before(&model.upstream).with(&config).files(&files).start());
        Site { model, gateways, calls: 0 }
    }

    fn call(&mut self, end: End, words: u64, pause: Duration) -> Call {
        self.calls += 1;
        // All formats of streams in turn, with and without a question for the usage.
        let number = usize::try_from(self.calls).unwrap();
        let api = [Api::OpenAiChat, Api::Anthropic, Api::OpenAiResponses, Api::Gemini][number % 4];
        let shape = CallShape { api, end, is_stream: true, asks: number % 8 < 4, words, spare: 3, bytes: 40, pause };
        let call = Call::new(self.calls, shape);
        self.model.expect(&call);
        call
    }

    /// Returns what the upstream has counted of these calls.
    fn counted(&self, calls: &[Call]) -> Used {
        calls.iter().fold(Used::default(), |sum, call| {
            self.model.sent(call).map_or(sum, |sent| sum.plus(Used::of(call.prompt, sent.words)))
        })
    }

    /// Both gateways say soon that exactly this is spent, and nothing held.
    #[track_caller]
    fn becomes(&self, used: Used) {
        for gateway in &self.gateways {
            let admin = gateway.admin.to_string();
            let show = |rule, key| tollgate(&["bucket", "show", "--admin", &admin, rule, key]).out;
            let (tokens, money) = (format!("{} spent, 0 held, ", used.tokens), dollars(used.money));
            eventually(&tokens, || show("minute", "header:x-user=ann").contains(&tokens));
            let money = format!("{money} USD spent, 0.00 USD held, ");
            eventually(&money, || show("month", "key:id=team").contains(&money));
        }
    }

    /// Sends a call to a gateway, and returns the whole response.
    fn response(&self, call: &Call) -> Response {
        let (path, body) = (call.path(), call.body());
        let mut client: Client = self.gateways[0].client();
        client.write(&format!(
            "POST {path} HTTP/1.1\r\nHost: a\r\nX-Call: {}\r\n{FIELDS}Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            call.id,
            body.len()
        ));
        client.response("POST").unwrap()
    }
}

/// As `bucket show` and messages say it.
fn dollars(money: u64) -> String {
    let text = format!("{}.{:09}", money / 1_000_000_000, money % 1_000_000_000);
    let cents = text.find('.').unwrap() + 3;
    text[..text.trim_end_matches('0').len().max(cents)].to_owned()
}

#[test]
fn books_of_tokens_and_dollars_equal_the_upstreams_when_half_of_twenty_streams_is_cut() {
    let redis = Redis::start();
    let mut site = Site::start(&redis);
    // They run at the same time: each is longer than it takes to send them.
    let streams: Vec<Call> = (0..STREAMS)
        .map(|number| {
            let end = if number % 2 == 0 { End::Whole } else { End::ClientLeavesAfterWords(5 + number) };
            site.call(end, 50, Duration::from_millis(30))
        })
        .collect();
    let held = streams.iter().fold(Used::default(), |sum, call| sum.plus(Used::of(call.prompt, call.most)));
    assert!(held.fits(), "there is room for all: {held:?}");
    let seen: Vec<CallResult> = std::thread::scope(|scope| {
        let site = &site;
        let begin = |(call, number): (_, usize)| {
            scope.spawn(move || make(call, site.gateways[number % 2].http, FIELDS, &site.model))
        };
        let running: Vec<_> = streams.iter().zip(0..).map(begin).collect();
        running.into_iter().map(|stream| stream.join().unwrap()).collect()
    });
    // Nobody is refused while there is room beyond what is in flight.
    for (number, seen) in seen.iter().enumerate() {
        let expected = if number % 2 == 0 { CallResult::Whole } else { CallResult::Left(5 + number as u64) };
        assert_eq!(*seen, expected, "stream {number}");
    }
    let mut used = site.counted(&streams);
    site.becomes(used);
    // One after the other, until the month refuses: not before it has too little for the call.
    let refused = loop {
        let call = site.call(End::Whole, 50, Duration::ZERO);
        let response = site.response(&call);
        let reserved = Used::of(call.prompt, call.most);
        if response.status != 200 {
            assert!(!used.plus(reserved).fits(), "refused with {used:?} spent and {reserved:?} asked: {response:?}");
            break response;
        }
        assert!(used.plus(reserved).fits(), "admitted with {used:?} spent");
        used = used.plus(site.counted(std::slice::from_ref(&call)));
        site.becomes(used);
    };
    site.becomes(used);
    let error = &refused.json()["error"];
    assert_eq!((refused.status, refused.field("x-should-retry").as_deref()), (429, Some("false")));
    assert_eq!(
        (error["type"].as_str(), error["code"].as_str()),
        (Some("insufficient_quota"), Some("insufficient_quota"))
    );
    // In cents, rounded up.
    let (cents, message) = (used.money.div_ceil(10_000_000), error["message"].as_str().unwrap());
    let expected =
        format!("The limit month is used up. Limit 0.20 USD, spent 0.{cents:02} USD, held 0.00 USD, reset in ");
    assert!(message.starts_with(&expected), "{message}\n{expected}");
}
