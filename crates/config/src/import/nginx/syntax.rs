//! Parses the syntax of nginx' configuration: directives of words, which end with `;` or have a block.

use std::rc::Rc;

use base::position::Position;

/// The deepest nesting of blocks. nginx itself allows less.
const DEEPEST: usize = 32;

/// A directive with its words and, if it has one, its block.
#[derive(Clone, Debug)]
pub(super) struct Directive {
    pub file: Rc<str>,
    pub position: Position,
    /// The name and the arguments.
    pub words: Vec<String>,
    pub block: Option<Vec<Directive>>,
}

impl Directive {
    pub(super) fn name(&self) -> &str {
        self.words.first().map_or("", String::as_str)
    }

    pub(super) fn arguments(&self) -> &[String] {
        self.words.get(1..).unwrap_or_default()
    }

    pub(super) fn argument(&self) -> &str {
        self.words.get(1).map_or("", String::as_str)
    }
}

/// A mistake in the syntax: its position, and what must hold.
pub(super) type Mistake = (Position, &'static str);

/// Parses the text of a file.
///
/// # Errors
/// At the first mistake.
pub(super) fn parse(file: &str, text: &str) -> Result<Vec<Directive>, Mistake> {
    let mut reader = Reader { file: file.into(), rest: text.chars().peekable(), at: Position { line: 1, column: 1 } };
    let directives = reader.directives(0)?;
    match reader.rest.peek() {
        Some(_) => Err((reader.at, "must not have a `}` without a `{`")),
        None => Ok(directives),
    }
}

struct Reader<'t> {
    file: Rc<str>,
    rest: std::iter::Peekable<std::str::Chars<'t>>,
    at: Position,
}

impl Reader<'_> {
    fn next(&mut self) -> Option<char> {
        let char = self.rest.next()?;
        self.at = match char {
            '\n' => Position { line: self.at.line + 1, column: 1 },
            _ => Position { column: self.at.column + 1, ..self.at },
        };
        Some(char)
    }

    fn skip_space(&mut self) {
        while let Some(char) = self.rest.peek() {
            match char {
                '#' => while self.next().is_some_and(|char| char != '\n') {},
                char if char.is_whitespace() => _ = self.next(),
                _ => return,
            }
        }
    }

    /// Reads directives up to the end of their block, which is not read.
    fn directives(&mut self, depth: usize) -> Result<Vec<Directive>, Mistake> {
        let mut directives = Vec::new();
        loop {
            self.skip_space();
            match self.rest.peek() {
                None | Some('}') => return Ok(directives),
                Some(_) => directives.push(self.directive(depth)?),
            }
        }
    }

    fn directive(&mut self, depth: usize) -> Result<Directive, Mistake> {
        let position = self.at;
        let mut words = Vec::new();
        loop {
            self.skip_space();
            match self.rest.peek() {
                None => return Err((position, "must end with `;` or have a block")),
                Some('}') => return Err((self.at, "must not follow a directive without `;`")),
                Some(';') => {
                    self.next();
                    return Ok(Directive { file: Rc::clone(&self.file), position, words, block: None });
                }
                Some('{') if words.first().is_some_and(|name: &String| name.ends_with("_by_lua_block")) => {
                    self.skip_block(position)?;
                    return Ok(Directive { file: Rc::clone(&self.file), position, words, block: None });
                }
                Some('{') if depth == DEEPEST => return Err((self.at, "must not be nested as deep as this")),
                Some('{') => {
                    self.next();
                    let block = self.directives(depth + 1)?;
                    if self.next() != Some('}') {
                        return Err((position, "must have a block that ends with `}`"));
                    }
                    return Ok(Directive { file: Rc::clone(&self.file), position, words, block: Some(block) });
                }
                Some(_) => words.push(self.word()?),
            }
        }
    }

    fn word(&mut self) -> Result<String, Mistake> {
        let begin = self.at;
        let mut word = String::new();
        if let Some(quote @ ('"' | '\'')) = self.rest.peek().copied() {
            self.next();
            loop {
                match self.next() {
                    None => return Err((begin, "must end with its quote")),
                    Some(char) if char == quote => return Ok(word),
                    Some('\\') => self.escaped(&mut word),
                    Some(char) => word.push(char),
                }
            }
        }
        while let Some(char) = self.rest.peek().copied() {
            match char {
                ';' => break,
                char if char.is_whitespace() => break,
                // `${name}` is a variable, and any other brace begins a block.
                '{' if word.ends_with('$') => {
                    while let Some(char) = self.next() {
                        word.push(char);
                        if char == '}' {
                            break;
                        }
                    }
                }
                // The braces of a regular expression stand in quotes.
                '{' | '}' => break,
                '\\' => {
                    self.next();
                    self.escaped(&mut word);
                }
                _ => word.extend(self.next()),
            }
        }
        Ok(word)
    }

    /// Reads the character after a backslash. nginx keeps the backslash, except before a quote or a backslash.
    fn escaped(&mut self, word: &mut String) {
        match self.next() {
            Some(char @ ('"' | '\'' | '\\')) => word.push(char),
            Some(char) => word.extend(['\\', char]),
            None => {}
        }
    }

    /// Skips a block of another language, whose braces are balanced.
    fn skip_block(&mut self, begin: Position) -> Result<(), Mistake> {
        let mut open = 0usize;
        while let Some(char) = self.next() {
            match char {
                '{' => open += 1,
                '}' if open == 1 => return Ok(()),
                '}' => open -= 1,
                _ => {}
            }
        }
        Err((begin, "must have a block that ends with `}`"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Prints directives as nginx reads them, one for each line of the result.
    fn printed(text: &str) -> String {
        fn print(directives: &[Directive]) -> String {
            let each = directives.iter().map(|one| match &one.block {
                None => one.words.join("|"),
                Some(block) => format!("{}[{}]", one.words.join("|"), print(block)),
            });
            each.collect::<Vec<_>>().join(" ")
        }
        match parse("nginx.conf", text) {
            Ok(directives) => print(&directives),
            Err((position, what)) => format!("{position}: {what}"),
        }
    }

    #[test]
    fn directives_have_words_and_blocks() {
        for (text, expected) in [
            ("", ""),
            ("a;b c ;", "a b|c"),
            ("# one\nhttp { a 'b c' \"d\\\"e\"; # two\n server{listen 80;} }", "http[a|b c|d\"e server[listen|80]]"),
            ("location ~ \\.php$ {}", "location|~|\\.php$[]"),
            ("key ${a}${b}-c x;", "key|${a}${b}-c|x"),
            ("content_by_lua_block { if a then { b } end } c;", "content_by_lua_block c"),
        ] {
            assert_eq!(printed(text), expected, "{text}");
        }
    }

    #[test]
    fn a_mistake_is_named_with_its_position() {
        for (text, expected) in [
            ("a;\n  b", "2:3: must end with `;` or have a block"),
            ("a {\n b }", "2:4: must not follow a directive without `;`"),
            ("a { b;", "1:1: must have a block that ends with `}`"),
            ("}", "1:1: must not have a `}` without a `{`"),
            ("a \"b;", "1:3: must end with its quote"),
            ("x_by_lua_block { {", "1:1: must have a block that ends with `}`"),
        ] {
            assert_eq!(printed(text), expected, "{text}");
        }
        assert!(printed(&"a{".repeat(1000)).ends_with("must not be nested as deep as this"));
    }
}
