//! Invalid tokens of many kinds: none of them gets a better limit than a request without a token.
//!
//! The attacks of RFC 7515, 7519 and 8725, against a gateway that rejects invalid tokens and one that treats such requests as
//! requests without a token.

use ring::{hmac, signature};
use serde_json::{Value, json};

use crate::support::mint;
use crate::support::mint::{Signer, SigningKey, encode, epoch, with, without};
use crate::support::{Gateway, Response, Upstream};

const ISSUER: &str = "https://auth.example.com";

/// The keys that the gateways trust, and one key that they do not trust.
struct Keys {
    ec: SigningKey,
    rsa: SigningKey,
    ed: SigningKey,
    stranger: SigningKey,
}

impl Keys {
    fn new() -> Keys {
        let rsa = mint::rsa(&signature::RSA_PKCS1_SHA256);
        Keys { ec: mint::es256(), rsa, ed: mint::eddsa(), stranger: mint::es256() }
    }

    fn gateway(&self, upstream: &Upstream, on_invalid: &str) -> Gateway {
        let set = json!({"keys": [self.ec.jwk_as("e1"), self.rsa.jwk_as("r1"), self.ed.jwk_as("d1")]});
        let text = format!(
            "
jwt:
  issuer: {ISSUER}
  audience: [api]
  algorithms: [ES256, RS256, EdDSA]
  keys: {{jwks_file: keys.json}}
  on_invalid: {on_invalid}
rules:
  - {{name: enterprise, match: {{jwt:plan: enterprise}}, limit_keys: [jwt:sub], algorithm_config: {{rps: 1000, burst: 2000}}}}
  - {{name: free, match: {{jwt:plan: free}}, limit_keys: [jwt:sub], algorithm_config: {{rps: 100, burst: 1000}}}}
  - {{name: anonymous, limit_keys: [ip:address], algorithm_config: {{rps: 1, burst: 900}}}}
"
        );
        Gateway::before(upstream).with(&text).file("keys.json", &set.to_string()).start()
    }
}

fn header() -> Value {
    json!({"alg": "ES256", "kid": "e1", "typ": "JWT"})
}

fn claims() -> Value {
    json!({"iss": ISSUER, "aud": "api", "sub": "mallory", "plan": "enterprise", "exp": epoch() + 600})
}

/// Returns forged tokens with their names. The gateway must reject all of them.
fn forged(keys: &Keys) -> Vec<(String, String)> {
    let mut ways: Vec<(String, String)> = Vec::new();
    let (ec, header, claims) = (&keys.ec.signer, header(), claims());
    let good = ec.token(&header, &claims);
    let parts: Vec<&str> = good.split('.').collect();
    let (head, body, sig) = (parts[0], parts[1], parts[2]);
    let mut add = |name: &str, token: String| ways.push((name.to_owned(), token));

    // RFC 7515, section 3.1, and 7519, section 7.2: what a token looks like.
    add("nothing behind Bearer", String::new());
    add("one part", head.to_owned());
    add("two parts", format!("{head}.{body}"));
    add("four parts", format!("{good}.{sig}"));
    add("five parts, as if encrypted", format!("{good}.{sig}.{sig}"));
    add("only dots", "..".to_owned());
    add("an empty header", format!(".{body}.{sig}"));
    add("empty claims", format!("{head}..{sig}"));
    add("padding", format!("{head}=.{body}.{sig}"));
    add("the other alphabet", format!("{head}.{body}.{}+/", &sig[..sig.len() - 2]));
    add("a space inside", format!("{head} .{body}.{sig}"));
    add("something behind", format!("{good} x"));
    add("quoted", format!("\"{good}\""));
    add("two in a list", format!("{good}, {good}"));
    add("the JSON form", json!({"protected": head, "payload": body, "signature": sig}).to_string());
    add("too long", ec.token(&header, &with(&claims, "filler", json!("x".repeat(9000)))));
    let written = |header: &str, claims: &str| ec.token_of(header, claims);
    add("a header that is no JSON", written("alg", &claims.to_string()));
    add("a header that is a list", written("[]", &claims.to_string()));
    add("claims that are no JSON", written(&header.to_string(), "sub=mallory"));
    add("claims that are a list", written(&header.to_string(), "[]"));
    add("claims that are a text", written(&header.to_string(), "\"enterprise\""));
    add("claims with something behind", written(&header.to_string(), &format!("{claims}{{}}")));
    add("claims that are not closed", written(&header.to_string(), claims.to_string().trim_end_matches('}')));
    let deep = format!("{}1{}", r#"{"a":"#.repeat(400), "}".repeat(400));
    add("deep claims", written(&header.to_string(), &format!(r#"{{"exp":9999999999,"deep":{deep}}}"#)));
    let bytes = {
        let message = format!("{head}.{}", encode([&b"{\"plan\":\""[..], b"\xff\xfe", b"\"}"].concat()));
        format!("{message}.{}", encode(ec.sign(message.as_bytes())))
    };
    add("claims that are not UTF-8", bytes);

    // Section 4: no name twice, or two readers see two tokens.
    let twice =
        |extra: &str| written(&header.to_string(), &claims.to_string().replacen('{', &format!("{{{extra},"), 1));
    add("exp twice", twice("\"exp\":1"));
    add("plan twice", twice("\"plan\":\"free\""));
    add("plan twice, spelt differently", twice("\"pl\\u0061n\":\"free\""));
    add("a name twice further in", twice("\"x\":{\"a\":1,\"a\":2}"));
    add("alg twice", written(r#"{"alg":"none","alg":"ES256","kid":"e1"}"#, &claims.to_string()));

    // RFC 8725, sections 2.1 and 3.1: no algorithm that was not asked for.
    for name in ["none", "None", "NONE", "nOnE"] {
        let header = with(&header, "alg", json!(name));
        add(&format!("{name}, unsigned"), Signer::Nobody.token(&header, &claims));
        add(&format!("{name}, signed"), ec.token(&header, &claims));
    }
    add("alg missing", ec.token(&without(&header, "alg"), &claims));
    for (name, alg) in [
        ("null", json!(null)),
        ("a number", json!(256)),
        ("a list", json!(["ES256"])),
        ("empty", json!("")),
        ("in lower case", json!("es256")),
        ("with a space", json!("ES256 ")),
        ("ES256K", json!("ES256K")),
        ("ES512", json!("ES512")),
        ("ES384, for a key of 256 bits", json!("ES384")),
        ("EdDSA, for an EC key", json!("EdDSA")),
        ("RS256, for an EC key", json!("RS256")),
    ] {
        add(&format!("alg is {name}"), ec.token(&with(&header, "alg", alg), &claims));
    }
    let rsa_header = json!({"alg": "RS256", "kid": "r1"});
    for (name, encoding) in [
        ("RS384", &signature::RSA_PKCS1_SHA384 as &'static dyn signature::RsaEncoding),
        ("RS512", &signature::RSA_PKCS1_SHA512),
        ("PS256", &signature::RSA_PSS_SHA256),
        ("PS384", &signature::RSA_PSS_SHA384),
    ] {
        let signer = mint::rsa(encoding).signer;
        add(&format!("{name}, which is not listed"), signer.token(&with(&rsa_header, "alg", json!(name)), &claims));
        add(&format!("{name}, called RS256"), signer.token(&rsa_header, &claims));
    }

    // RFC 8725, section 2.1: the public key as a shared secret.
    let spellings = [
        ("PEM", keys.rsa.pem.clone().into_bytes()),
        ("PEM without its last line end", keys.rsa.pem.trim_end().as_bytes().to_vec()),
        ("JWK", keys.rsa.jwk.to_string().into_bytes()),
        ("modulus", keys.rsa.jwk["n"].as_str().unwrap().as_bytes().to_vec()),
        ("EC PEM", keys.ec.pem.clone().into_bytes()),
        ("nothing", Vec::new()),
    ];
    for (spelling, secret) in spellings {
        for (name, algorithm) in [("HS256", hmac::HMAC_SHA256), ("HS512", hmac::HMAC_SHA512)] {
            for id in ["r1", "e1"] {
                let signer = Signer::Hmac(algorithm, secret.clone());
                let token = signer.token(&json!({"alg": name, "kid": id}), &claims);
                add(&format!("{name} by the {spelling} of {id}"), token);
            }
        }
    }

    // Sections 3.2 and 3.3: invalid signatures.
    let signed = |bytes: &[u8]| format!("{head}.{body}.{}", encode(bytes));
    let right = ec.sign(format!("{head}.{body}").as_bytes());
    add("no signature", format!("{head}.{body}."));
    add("half a signature", signed(&right[..32]));
    add("a byte too many", signed(&[&right[..], b"\0"].concat()));
    add(
        "one bit off",
        signed(&right.iter().enumerate().map(|(at, byte)| byte ^ u8::from(at == 20)).collect::<Vec<_>>()),
    );
    add("zeros", signed(&[0; 64]));
    add("ones", signed(&[0xff; 64]));
    add("in DER", signed(&[&[0x30, 0x44, 0x02, 0x20][..], &right[..32], &[0x02, 0x20], &right[32..]].concat()));
    add("of another token", {
        let other = ec.token(&header, &with(&claims, "plan", json!("free")));
        format!("{head}.{body}.{}", other.rsplit('.').next().unwrap())
    });
    add("changed claims", {
        let free = ec.token(&header, &with(&claims, "plan", json!("free")));
        let sig = free.rsplit('.').next().unwrap().to_owned();
        format!("{head}.{}.{sig}", encode(with(&claims, "plan", json!("enterprise")).to_string()))
    });
    add("a changed header", format!("{}.{body}.{sig}", encode(with(&header, "typ", json!("at+jwt")).to_string())));
    let stranger = &keys.stranger;
    add("a stranger's key", stranger.signer.token(&header, &claims));
    add("a stranger's key, not named", stranger.signer.token(&without(&header, "kid"), &claims));
    add("a stranger's key, brought along", stranger.signer.token(&with(&header, "jwk", stranger.jwk.clone()), &claims));
    add(
        "a stranger's key, by URL",
        stranger.signer.token(&with(&header, "jku", json!("http://127.0.0.1:1/")), &claims),
    );
    add(
        "a stranger's key, by x5u",
        stranger.signer.token(&with(&header, "x5u", json!("http://127.0.0.1:1/")), &claims),
    );
    add(
        "a stranger's key, in x5c",
        stranger.signer.token(&with(&header, "x5c", json!([encode(&stranger.pem)])), &claims),
    );
    let other_ed = mint::eddsa().signer;
    add("a stranger's EdDSA", other_ed.token(&json!({"alg": "EdDSA", "kid": "d1"}), &claims));

    // Section 3.10: a key's name is a name.
    for (name, id) in [
        ("unknown", json!("e2")),
        ("in another case", json!("E1")),
        ("of another kind of key", json!("r1")),
        ("a number", json!(1)),
        ("null", json!(null)),
        ("a list", json!(["e1"])),
        ("a path", json!("../../../../dev/null")),
        ("SQL", json!("e1' OR '1'='1")),
        ("with a NUL", json!("e1\0")),
        ("very long", json!("e1".repeat(300))),
    ] {
        add(&format!("a key's name that is {name}"), ec.token(&with(&header, "kid", id), &claims));
    }
    for (name, extensions) in
        [("exp", json!(["exp"])), ("b64", json!(["b64"])), ("nothing", json!([])), ("null", json!(null))]
    {
        add(&format!("critical: {name}"), ec.token(&with(&header, "crit", extensions), &claims));
    }

    // RFC 7519, section 4.1: what the claims must be.
    let now = epoch();
    add("exp missing", ec.token(&header, &without(&claims, "exp")));
    for (name, exp) in [
        ("long ago", json!(1)),
        ("just beyond the leeway", json!(now - 31)),
        ("a fraction, past", json!(1.5)),
        ("negative", json!(-1)),
        ("zero", json!(0)),
        ("a text", json!((now + 600).to_string())),
        ("null", json!(null)),
        ("true", json!(true)),
        ("a list", json!([now + 600])),
        ("an object", json!({})),
    ] {
        add(&format!("exp is {name}"), ec.token(&header, &with(&claims, "exp", exp)));
    }
    let endless = claims.to_string().replace(&claims["exp"].to_string(), "1e400");
    add("exp is beyond all numbers", written(&header.to_string(), &endless));
    for (name, nbf) in
        [("to come", json!(now + 300)), ("a text", json!("0")), ("null", json!(null)), ("a list", json!([]))]
    {
        add(&format!("nbf is {name}"), ec.token(&header, &with(&claims, "nbf", nbf)));
    }
    add("iss missing", ec.token(&header, &without(&claims, "iss")));
    for (name, iss) in [
        ("somebody else", json!("https://evil.example")),
        ("with a slash", json!(format!("{ISSUER}/"))),
        ("in another case", json!("https://AUTH.example.com")),
        ("longer", json!(format!("{ISSUER}.evil.example"))),
        ("a list", json!([ISSUER])),
        ("a number", json!(1)),
        ("null", json!(null)),
    ] {
        add(&format!("iss is {name}"), ec.token(&header, &with(&claims, "iss", iss)));
    }
    add("aud missing", ec.token(&header, &without(&claims, "aud")));
    for (name, aud) in [
        ("somebody else", json!("web")),
        ("longer", json!("api2")),
        ("shorter", json!("ap")),
        ("in another case", json!("API")),
        ("a list of others", json!(["web", "mail"])),
        ("an empty list", json!([])),
        ("a list with a number", json!(["api", 1])),
        ("an object", json!({"api": true})),
        ("null", json!(null)),
    ] {
        add(&format!("aud is {name}"), ec.token(&header, &with(&claims, "aud", aud)));
    }
    ways
}

fn policy(response: &Response) -> String {
    response.field("RateLimit-Policy").unwrap_or_default()
}

#[test]
fn a_good_token_gets_its_plan_with_every_key_and_also_without_its_name() {
    let (keys, upstream) = (Keys::new(), Upstream::start());
    let gateway = keys.gateway(&upstream, "reject");
    let mut client = gateway.client();
    let claims = claims();
    for (name, minted) in [("ES256", &keys.ec), ("RS256", &keys.rsa), ("EdDSA", &keys.ed)] {
        let id = json!(match name {
            "ES256" => "e1",
            "RS256" => "r1",
            _ => "d1",
        });
        for header in
            [json!({"alg": name, "kid": id}), json!({"alg": name}), json!({"alg": name, "kid": id, "typ": "at+jwt"})]
        {
            for scheme in ["Bearer", "bearer", "BEARER", "Bearer "] {
                let token = minted.signer.token(&header, &claims);
                let response = client.get("/", &[("Authorization", &format!("{scheme} {token}"))]);
                assert_eq!(
                    (response.status, &*policy(&response)),
                    (200, "\"enterprise\";q=2000;w=2"),
                    "{header} {scheme}"
                );
            }
        }
    }
    // Both times may be off by the leeway, and be fractions.
    for (claim, value) in
        [("exp", json!(epoch() - 20)), ("nbf", json!(epoch() + 20)), ("exp", json!(epoch() + 1)), ("iat", json!("x"))]
    {
        let token = keys.ec.signer.token(&header(), &with(&claims, claim, value.clone()));
        assert_eq!(client.get("/", &[("Authorization", &format!("Bearer {token}"))]).status, 200, "{claim} {value}");
    }
    let fraction = with(&claims, "exp", json!(9_999_999_999.5));
    let several = with(&fraction, "aud", json!(["web", "api"]));
    let token = keys.ec.signer.token(&header(), &several);
    assert_eq!(client.get("/", &[("Authorization", &format!("Bearer {token}"))]).status, 200);
}

#[test]
fn no_forged_token_gets_more_than_no_token() {
    let (keys, upstream) = (Keys::new(), Upstream::start());
    let (strict, lenient) = (keys.gateway(&upstream, "reject"), keys.gateway(&upstream, "anonymous"));
    let (mut at_strict, mut at_lenient) = (strict.client(), lenient.client());
    let ways = forged(&keys);
    assert!(ways.len() >= 80, "{} ways", ways.len());
    for (name, token) in &ways {
        let field = format!("Bearer {token}");
        let response = at_strict.get("/", &[("Authorization", &field)]);
        assert_eq!(response.status, 401, "{name}");
        assert_eq!(response.field("X-Tollgate-Reason").as_deref(), Some("token_invalid"), "{name}");
        assert_eq!(response.field("WWW-Authenticate").as_deref(), Some("Bearer error=\"invalid_token\""), "{name}");
        assert_eq!(policy(&response), "", "{name}");
        let response = at_lenient.get("/", &[("Authorization", &field)]);
        assert_eq!((response.status, &*policy(&response)), (200, "\"anonymous\";q=900;w=900"), "{name}");
    }
    // At the strict one no rule's bucket was touched, and the upstream saw nothing.
    let count = f64::from(u32::try_from(ways.len()).unwrap());
    strict.expect("rate_limiter_requests_total", &[], 0.0);
    strict.expect("rate_limiter_decisions_total", &["refused"], count);
    strict.expect("tollgate_refused_requests_total", &["token_invalid"], count);
    assert_eq!(upstream.count(), ways.len());
}

#[test]
fn other_schemes_count_as_no_token_and_ambiguous_tokens_are_refused() {
    let (keys, upstream) = (Keys::new(), Upstream::start());
    let gateway = keys.gateway(&upstream, "reject");
    let token = keys.ec.signer.token(&header(), &claims());
    let bearer = format!("Bearer {token}");
    let mut client = gateway.client();
    let mut check = |target: &str, fields: &[(&str, &str)], status: u16, limit: &str| {
        let response = client.get(target, fields);
        let shown = policy(&response);
        let name = shown.split(';').next().unwrap_or_default().trim_matches('"').to_owned();
        assert_eq!((response.status, &*name), (status, limit), "{target} {fields:?}");
    };
    check("/", &[("Authorization", &bearer)], 200, "enterprise");
    // No token: another scheme, another place.
    check("/", &[], 200, "anonymous");
    check("/", &[("Authorization", "Basic bWFsbG9yeTp4")], 200, "anonymous");
    check("/", &[("Authorization", "")], 200, "anonymous");
    check("/", &[("Authorization", &token)], 200, "anonymous");
    check("/", &[("Authorization", &format!("Token {token}"))], 200, "anonymous");
    check("/", &[("X-Authorization", &bearer)], 200, "anonymous");
    check("/", &[("Proxy-Authorization", &bearer)], 200, "anonymous");
    check("/", &[("Cookie", &format!("authorization={token}"))], 200, "anonymous");
    check(&format!("/?access_token={token}"), &[], 200, "anonymous");
    // No way to tell what the upstream would read.
    check("/", &[("Authorization", &bearer), ("Authorization", &bearer)], 400, "");
    check("/", &[("Authorization", "Basic x"), ("Authorization", &bearer)], 400, "");
    check("/", &[("Authorization", &bearer), ("Connection", "authorization")], 400, "");
    check("/", &[("Authorization", &format!("Bearer\t{token}x"))], 401, "");
    check("/", &[("Authorization", "Bearer")], 401, "");
    // A list has the plan if one of its elements is it.
    let token = keys.ec.signer.token(&header(), &with(&claims(), "plan", json!(["free", "enterprise"])));
    check("/", &[("Authorization", &format!("Bearer {token}"))], 200, "enterprise");
    // A verified token with a plan that no rule names.
    for plan in [
        json!([]),
        json!(["enterprises"]),
        json!(["enterprise", true]),
        json!([["enterprise"]]),
        json!({"enterprise": true}),
        json!(null),
        json!("Enterprise"),
        json!("enterprise "),
        json!(1.5),
        json!("enterprise\0"),
    ] {
        let token = keys.ec.signer.token(&header(), &with(&claims(), "plan", plan.clone()));
        check("/", &[("Authorization", &format!("Bearer {token}"))], 200, "anonymous");
    }
    // And without anything to count it by, no rule for plans applies.
    for sub in [json!(null), json!(["a"]), json!({})] {
        let token = keys.ec.signer.token(&header(), &with(&claims(), "sub", sub));
        check("/", &[("Authorization", &format!("Bearer {token}"))], 200, "anonymous");
    }
}
