//! What was said so far, in as many tokens as it may take.

use crate::error::Error;
use crate::template::Message;

/// A conversation.
#[derive(Debug)]
pub(super) struct Conversation {
    messages: Vec<Message>,
    /// How many of them stay when turns are dropped.
    kept: usize,
    /// Tokens that it may take.
    most: usize,
}

/// What becomes of what a user says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// It is the last message of a conversation of these tokens, of which so many turns were dropped for it, the oldest ones.
    Taken { tokens: Vec<u32>, dropped: usize },
    /// It is left out, as it takes so many tokens alone.
    TooLong { tokens: usize },
}

impl Conversation {
    /// Begins one, with what the model is told before it.
    pub(super) fn new(system: Option<String>, most: usize) -> Conversation {
        let messages: Vec<Message> =
            system.map(|content| Message { role: "system", content }).into_iter().collect();
        Conversation { kept: messages.len(), messages, most }
    }

    /// Adds what the user says; `encode` gives the tokens of messages. Turns are dropped for a message that then fits, and for no other.
    ///
    /// # Errors
    /// Those of `encode`.
    pub(super) fn user(
        &mut self,
        content: String,
        encode: impl Fn(&[Message]) -> Result<Vec<u32>, Error>,
    ) -> Result<Said, Error> {
        let message = Message { role: "user", content };
        self.messages.push(message.clone());
        let mut tokens = encode(&self.messages)?;
        if tokens.len() > self.most {
            let alone = encode(&[&self.messages[..self.kept], &[message]].concat())?;
            if alone.len() > self.most {
                self.messages.pop();
                return Ok(Said::TooLong { tokens: alone.len() });
            }
        }
        let mut dropped = 0;
        while tokens.len() > self.most && self.messages.len() > self.kept + 2 {
            // What was said and what was answered.
            self.messages.drain(self.kept..self.kept + 2);
            dropped += 1;
            tokens = encode(&self.messages)?;
        }
        Ok(Said::Taken { tokens, dropped })
    }

    /// Adds what the model answers.
    pub(super) fn assistant(&mut self, content: String) {
        self.messages.push(Message { role: "assistant", content });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A token for each character, and one for each message.
    fn encode(messages: &[Message]) -> Result<Vec<u32>, Error> {
        let of = |message: &Message| [0].into_iter().chain(message.content.chars().map(u32::from)).collect();
        Ok(messages.iter().flat_map(|message| -> Vec<u32> { of(message) }).collect())
    }

    /// The tokens of messages with these contents.
    fn tokens(contents: &[&str]) -> Result<Vec<u32>, Error> {
        let messages =
            contents.iter().map(|content| Message { role: "user", content: (*content).to_owned() });
        encode(&messages.collect::<Vec<_>>())
    }

    #[test]
    fn the_oldest_turns_are_dropped_for_what_then_fits() -> Result<(), Error> {
        let mut conversation = Conversation::new(Some("sys".to_owned()), 16);
        let mut say = |question: &str, answer: &str| {
            let said = conversation.user(question.to_owned(), encode)?;
            if let Said::Taken { .. } = said {
                conversation.assistant(answer.to_owned());
            }
            Ok::<Said, Error>(said)
        };
        let taken = |contents: &[&str], dropped| {
            Ok::<Said, Error>(Said::Taken { tokens: tokens(contents)?, dropped })
        };
        assert_eq!(say("q1", "a1")?, taken(&["sys", "q1"], 0)?);
        assert_eq!(say("q2", "a2")?, taken(&["sys", "q1", "a1", "q2"], 0)?);
        assert_eq!(say("q3", "a3")?, taken(&["sys", "q2", "a2", "q3"], 1)?);
        // What would not fit by itself costs no turn.
        assert_eq!(say("twelve chars", "")?, Said::TooLong { tokens: 17 });
        assert_eq!(say("q4", "a4")?, taken(&["sys", "q3", "a3", "q4"], 1)?);
        // All turns, but not what the model was told: as many tokens as it may take.
        assert_eq!(say("eleven char", "a5")?, taken(&["sys", "eleven char"], 2)?);
        Ok(())
    }
}
