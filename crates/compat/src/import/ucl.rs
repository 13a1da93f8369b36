//! The two notations of `ctl.conf`, parsed into one tree: ctld's own (`lun 0 { path /dev/x }`) and UCL
//! (`lun { 0 { path = "/dev/x" } }`).

use std::path::Path;

use super::{Files, ImportError, shown_key};

/// Maximum depth of included files, and of nested sections.
const DEEPEST: usize = 16;

/// A key with its words, and the nodes inside its braces.
#[derive(Clone, Debug, Default)]
pub(super) struct Node {
    /// The key, as written.
    pub(super) key: String,
    /// The words after the key, or the elements of a list.
    pub(super) words: Vec<String>,
    /// The nodes inside its braces, or inside those of the objects of a list.
    pub(super) nodes: Vec<Node>,
    /// The key has braces.
    pub(super) is_section: bool,
    /// File and line.
    pub(super) place: String,
}

impl Node {
    /// Returns its first word.
    pub(super) fn word(&self) -> &str {
        self.words.first().map_or("", String::as_str)
    }

    /// Returns the inner nodes with this key.
    pub(super) fn within<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a Node> {
        self.nodes.iter().filter(move |node| node.key == key)
    }

    /// Returns the value of the inner node with this key.
    pub(super) fn value(&self, key: &str) -> Option<&str> {
        self.nodes.iter().rfind(|node| node.key == key).map(Node::word)
    }
}

/// Parses a file. The nodes of included files replace the `.include` settings.
pub(super) fn parse(path: &Path, text: &str, files: &dyn Files) -> Result<Vec<Node>, ImportError> {
    parse_at(path, text, files, 0)
}

fn parse_at(
    path: &Path,
    text: &str,
    files: &dyn Files,
    depth: usize,
) -> Result<Vec<Node>, ImportError> {
    if depth == DEEPEST {
        let place = path.display().to_string();
        return Err(ImportError::new(
            place,
            "files include each other endlessly; remove the include",
        ));
    }
    let tokens = tokens(path, text)?;
    let mut parser = Parser { path, files, tokens: &tokens, at: 0, depth };
    let nodes = parser.nodes(0)?;
    match parser.peek() {
        None => Ok(nodes),
        Some((_, place)) => Err(ImportError::new(place, "} without a section; remove it")),
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    /// One of `{}[]=:,;`, or the end of a line.
    Sign(char),
}

const END_OF_LINE: Token = Token::Sign('\n');

fn tokens(path: &Path, text: &str) -> Result<Vec<(Token, String)>, ImportError> {
    let mut tokens = Vec::new();
    let mut number = 1;
    let place = |number: usize| format!("{}:{number}", path.display());
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '\n' => {
                tokens.push((END_OF_LINE, place(number)));
                number += 1;
            }
            '#' => while characters.next_if(|c| *c != '\n').is_some() {},
            '/' if characters.peek() == Some(&'*') => {
                let begin = number;
                let mut before = ' ';
                loop {
                    let Some(next) = characters.next() else {
                        return Err(ImportError::new(
                            place(begin),
                            "a comment does not end: add */",
                        ));
                    };
                    number += usize::from(next == '\n');
                    if before == '*' && next == '/' {
                        break;
                    }
                    before = next;
                }
            }
            '"' => {
                let (begin, mut word) = (number, String::new());
                loop {
                    match characters.next() {
                        Some('"') => break,
                        Some('\\') => word.extend(characters.next()),
                        Some(other) => {
                            number += usize::from(other == '\n');
                            word.push(other);
                        }
                        None => {
                            let message = "a quoted text does not end: add \"";
                            return Err(ImportError::new(place(begin), message));
                        }
                    }
                }
                tokens.push((Token::Word(word), place(begin)));
            }
            '{' | '}' | '[' | ']' | '=' | ',' | ';'
                if character != '[' || !is_address(&characters) =>
            {
                tokens.push((Token::Sign(character), place(number)));
            }
            // A colon before a space ends a key. Otherwise it is part of an address or a name.
            ':' if characters.peek().is_none_or(|c| c.is_whitespace()) => {
                tokens.push((Token::Sign('='), place(number)));
            }
            c if c.is_whitespace() => {}
            first => {
                let mut word = String::from(first);
                let mut bracket = first == '[';
                while let Some(&next) = characters.peek() {
                    let ends = next.is_whitespace()
                        || "{}=;\"".contains(next)
                        || next == ',' && !word.contains(":")
                        || next == ',' && bracket
                        || next == '['
                        || next == ']' && !bracket;
                    let ends_key = next == ':' && {
                        let mut ahead = characters.clone();
                        ahead.next();
                        ahead.next().is_none_or(char::is_whitespace)
                    };
                    if ends || ends_key {
                        break;
                    }
                    bracket &= next != ']';
                    word.push(next);
                    characters.next();
                }
                tokens.push((Token::Word(word), place(number)));
            }
        }
    }
    Ok(tokens)
}

/// Returns whether a bracket begins an IPv6 address: `[::]:3261`.
fn is_address(characters: &std::iter::Peekable<std::str::Chars<'_>>) -> bool {
    let within: String =
        characters.clone().take_while(|c| *c != ']' && *c != '\n').take(64).collect();
    let allowed = |c: char| c.is_ascii_hexdigit() || ".:%".contains(c) || c.is_ascii_alphanumeric();
    within.contains(':') && !within.is_empty() && within.chars().all(allowed)
}

struct Parser<'a> {
    path: &'a Path,
    files: &'a dyn Files,
    tokens: &'a [(Token, String)],
    at: usize,
    depth: usize,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<&'a (Token, String)> {
        self.tokens.get(self.at)
    }

    fn next(&mut self) -> Option<&'a (Token, String)> {
        let token = self.tokens.get(self.at);
        self.at += 1;
        token
    }

    fn is_next(&self, sign: char) -> bool {
        matches!(self.peek(), Some((Token::Sign(next), _)) if *next == sign)
    }

    fn skip_lines(&mut self) {
        while self.is_next('\n') {
            self.at += 1;
        }
    }

    /// Parses nodes up to a closing brace or the end.
    fn nodes(&mut self, depth: usize) -> Result<Vec<Node>, ImportError> {
        let mut nodes = Vec::new();
        while let Some((token, place)) = self.peek() {
            match token {
                Token::Sign('}') => break,
                Token::Sign('\n' | ';' | ',') => self.at += 1,
                Token::Sign(other) => {
                    return Err(ImportError::new(place, format!("{other} where a key should be")));
                }
                Token::Word(word) if word.starts_with(".include") => self.include(&mut nodes)?,
                Token::Word(_) => nodes.push(self.node(depth)?),
            }
        }
        Ok(nodes)
    }

    fn include(&mut self, nodes: &mut Vec<Node>) -> Result<(), ImportError> {
        let place = self.next().map_or_else(String::new, |(_, place)| place.clone());
        let Some((Token::Word(file), _)) = self.next() else {
            return Err(ImportError::new(place, ".include names no file: write one"));
        };
        let path = self.path.parent().unwrap_or(Path::new("")).join(file);
        let text = self.files.read(&path).map_err(|error| {
            ImportError::new(place, format!("cannot read {}: {error}", path.display()))
        })?;
        nodes.extend(parse_at(&path, &text, self.files, self.depth + 1)?);
        Ok(())
    }

    fn node(&mut self, depth: usize) -> Result<Node, ImportError> {
        let mut node = Node::default();
        if let Some((Token::Word(key), place)) = self.next() {
            (node.key, node.place) = (key.clone(), place.clone());
        }
        if depth == DEEPEST {
            return Err(ImportError::new(node.place, "too many nested sections"));
        }
        loop {
            match self.peek() {
                Some((Token::Word(word), _)) => {
                    node.words.push(word.clone());
                    self.at += 1;
                }
                Some((Token::Sign('='), _)) => self.at += 1,
                Some((Token::Sign('{'), _)) => {
                    self.section(&mut node, depth)?;
                    break;
                }
                Some((Token::Sign('['), _)) => {
                    self.list(&mut node, depth)?;
                    break;
                }
                // In ctld's own notation, the brace may be on the next line.
                Some((Token::Sign('\n'), _)) => {
                    let before = self.at;
                    self.skip_lines();
                    if !self.is_next('{') {
                        self.at = before;
                        break;
                    }
                }
                _ => break,
            }
        }
        Ok(node)
    }

    fn section(&mut self, node: &mut Node, depth: usize) -> Result<(), ImportError> {
        self.at += 1;
        node.is_section = true;
        node.nodes.extend(self.nodes(depth + 1)?);
        match self.next() {
            Some(_) => Ok(()),
            None => {
                let message = format!("the section {} does not end: add }}", shown_key(&node.key));
                Err(ImportError::new(&node.place, message))
            }
        }
    }

    /// Parses a list. Its words become words of the key, and its objects become sections with the key's name.
    fn list(&mut self, node: &mut Node, depth: usize) -> Result<(), ImportError> {
        self.at += 1;
        loop {
            match self.peek() {
                Some((Token::Sign(']'), _)) => {
                    self.at += 1;
                    return Ok(());
                }
                Some((Token::Sign('\n' | ','), _)) => self.at += 1,
                Some((Token::Word(word), _)) => {
                    node.words.push(word.clone());
                    self.at += 1;
                }
                Some((Token::Sign('{'), place)) => {
                    let (key, place) = (node.key.clone(), place.clone());
                    let mut object = Node { key, place, ..Node::default() };
                    self.section(&mut object, depth + 1)?;
                    node.nodes.push(object);
                }
                Some((Token::Sign(other), place)) => {
                    return Err(ImportError::new(
                        place,
                        format!("{other} in a list: end it with ]"),
                    ));
                }
                None => {
                    let message =
                        format!("the list of {} does not end: add ]", shown_key(&node.key));
                    return Err(ImportError::new(&node.place, message));
                }
            }
        }
    }
}
