//! Reads a file of prices. Every message has the line, what is required, and what was found.

use std::collections::BTreeMap;

use super::{ModelPattern, ModelPrices, Price, Prices, Tier, WrongLine};

/// The largest number of wrong lines that are reported.
const MOST_FAULTS: usize = 20;
/// The longest name of a model, in bytes.
const LONGEST_MODEL: usize = 256;
/// The largest number of bytes of a value in a message.
const LONGEST_QUOTE: usize = 40;

/// The columns. The first three are required.
const COLUMNS: [&str; 6] = ["model", "input", "output", "cached", "cache_write", "above"];
const REQUIRED: usize = 3;

/// For each of [`COLUMNS`], its place in a line.
type Places = [Option<usize>; COLUMNS.len()];

/// Parses a file of prices.
///
/// # Errors
/// Returns the first invalid lines.
pub(super) fn parse(file: &[u8]) -> Result<Prices, Vec<WrongLine>> {
    let mut faults = Vec::new();
    let prices = read(file, &mut faults);
    match prices {
        Some(prices) if faults.is_empty() => Ok(prices),
        _ => {
            faults.sort_by_key(|fault| fault.line);
            faults.truncate(MOST_FAULTS);
            Err(faults)
        }
    }
}

fn read(file: &[u8], faults: &mut Vec<WrongLine>) -> Option<Prices> {
    let mut fault = |line, what| faults.push(WrongLine { line, what });
    let text = match std::str::from_utf8(file) {
        Ok(text) => text.strip_prefix('\u{feff}').unwrap_or(text),
        Err(error) => {
            let before = file.get(..error.valid_up_to()).unwrap_or_default();
            let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
            fault(line, "must be UTF-8".to_owned());
            return None;
        }
    };
    let mut lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
    let Some((number, header)) = lines.next() else {
        fault(1, format!("must name the columns: {}; the file is empty", COLUMNS.join(",")));
        return None;
    };
    let places = match places(header) {
        Ok(places) => places,
        Err(what) => {
            fault(number, what);
            return None;
        }
    };
    let width = header.split(',').count();
    let mut models: BTreeMap<ModelPattern, Vec<Tier>> = BTreeMap::new();
    for (count, (number, line)) in lines.enumerate() {
        if count == Prices::MAX_LINES {
            fault(number, format!("must be one of at most {} lines", Prices::MAX_LINES));
            break;
        }
        let values: Vec<&str> = line.split(',').map(str::trim).collect();
        if values.len() != width {
            fault(number, format!("must have {width} values, as the first line has, has {}", values.len()));
            continue;
        }
        match tier(number, &values, &places) {
            Ok((pattern, tier)) => models.entry(pattern).or_default().push(tier),
            Err(what) => fault(number, what),
        }
    }
    let mut checked = Vec::new();
    for (pattern, mut tiers) in models {
        tiers.sort_by_key(|tier| (tier.above, tier.line));
        for pair in tiers.windows(2) {
            if let [first, second] = pair
                && first.above == second.above
            {
                let what = format!(
                    "{}: must have one line above {}, line {} is another",
                    quoted(&pattern.to_string()),
                    second.above,
                    first.line
                );
                fault(second.line, what);
            }
        }
        if let Some(shortest) = tiers.first().filter(|tier| tier.above > 0) {
            let what = format!(
                "{}: must have a line above 0 for shorter prompts, the first is above {}",
                quoted(&pattern.to_string()),
                shortest.above
            );
            fault(shortest.line, what);
        }
        checked.push(ModelPrices { pattern, tiers });
    }
    Some(Prices::new(checked))
}

/// Returns the places of the columns that the first line names.
fn places(header: &str) -> Result<Places, String> {
    let mut places = [None; COLUMNS.len()];
    for (index, name) in header.split(',').map(str::trim).enumerate() {
        let place = COLUMNS.iter().zip(&mut places).find(|(column, _)| **column == name);
        match place {
            None => return Err(format!("columns must be of {}, found {}", COLUMNS.join(","), quoted(name))),
            Some((_, Some(_))) => return Err(format!("columns must be different, found {} twice", quoted(name))),
            Some((_, place)) => *place = Some(index),
        }
    }
    match COLUMNS.iter().zip(places).take(REQUIRED).find(|(_, place)| place.is_none()) {
        Some((column, _)) => Err(format!("columns must include {column}, found {}", quoted(header))),
        None => Ok(places),
    }
}

/// Reads the values of a line.
fn tier(line: usize, values: &[&str], places: &Places) -> Result<(ModelPattern, Tier), String> {
    let [model, input, output, cached, cache_write, above] =
        places.map(|place| place.and_then(|place| values.get(place)).copied().unwrap_or_default());
    let input = price("input", input)?;
    let output = price("output", output)?;
    let or_input = |name, text: &str| if text.is_empty() { Ok(input) } else { price(name, text) };
    let above = match above {
        "" => 0,
        _ if !above.bytes().all(|byte| byte.is_ascii_digit()) => return Err(not_tokens(above)),
        _ => above.parse().map_err(|_| not_tokens(above))?,
    };
    let (cached, cache_write) = (or_input("cached", cached)?, or_input("cache_write", cache_write)?);
    Ok((pattern(model)?, Tier { above, line, input, output, cached, cache_write }))
}

fn pattern(model: &str) -> Result<ModelPattern, String> {
    let (name, is_prefix) = match model.strip_suffix('*') {
        Some(prefix) => (prefix, true),
        None => (model, false),
    };
    if model.is_empty() || model.len() > LONGEST_MODEL || name.contains(['*', '"']) || name.contains(char::is_control) {
        let found = quoted(model);
        return Err(format!(
            "model must be a name of at most {LONGEST_MODEL} bytes, with * only at its end, found {found}"
        ));
    }
    Ok(match name {
        "default" if !is_prefix => ModelPattern::Default,
        _ if is_prefix => ModelPattern::Prefix(name.to_owned()),
        _ => ModelPattern::Name(name.to_owned()),
    })
}

fn price(column: &str, text: &str) -> Result<Price, String> {
    Price::parse(text).ok_or_else(|| {
        let (dollars, digits, found) = (Price::MAX_DOLLARS, Price::MAX_DIGITS, quoted(text));
        format!("{column} must be USD for a million tokens, 0 to {dollars}, with at most {digits} digits after the point, found {found}")
    })
}

fn not_tokens(text: &str) -> String {
    format!("above must be a number of tokens, found {}", quoted(text))
}

/// Quotes the beginning of a value, with hidden characters escaped.
fn quoted(text: &str) -> String {
    match text.char_indices().nth(LONGEST_QUOTE).and_then(|(end, _)| text.get(..end)) {
        Some(start) => format!("{start:?}…"),
        None => format!("{text:?}"),
    }
}
