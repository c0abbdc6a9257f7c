//! Random formats: drawn from a seed, written as TOML, and decoded from what the draw itself knows.
//!
//! [`places`] says where each bit of a block lies before any word of the language describes it; [`text`] then describes
//! what was placed; [`decode`] reads blocks by those places and by the sentences of docs/spec-reference.md. Nothing here
//! shares code with the checker, the compiler, the runtime or the oracle. A name (`rf_SEED_INDEX`) is all that is needed
//! to draw a format again.
#![allow(dead_code, unused_imports, reason = "each program that takes this in uses a part of it")]

mod breakages;
mod decode;
mod draw;
mod format;
mod places;
mod quantizers;
mod text;

pub use breakages::broken;
pub use decode::Data;
pub use format::{Drawn, Factor, Field, Float, Kind, Map};

impl Drawn {
    /// The format of this seed and index.
    pub fn new(seed: u64, index: usize) -> Drawn {
        draw::draw(seed, index)
    }

    /// The format of a name that one was given.
    pub fn of_name(name: &str) -> Option<Drawn> {
        let (seed, index) = name.strip_prefix("rf_")?.split_once('_')?;
        Some(Drawn::new(u64::from_str_radix(seed, 16).ok()?, index.parse().ok()?))
    }

    /// The files that describe it: a path below a spec folder, and content.
    pub fn files(&self) -> Vec<(String, Vec<u8>)> {
        let mut files = vec![(format!("formats/{}.toml", self.name), text::format(self).into_bytes())];
        if let Map::Book(book) = &self.map {
            let path = format!("codebooks/{}_book", self.name);
            files.push((format!("{path}.toml"), text::book(book).into_bytes()));
            if !book.inside {
                let (word, bytes) =
                    if book.width * book.bits as usize <= 16 { ("u16", 2) } else { ("u32", 4) };
                let table = book.entries.iter().flat_map(|entry| entry.to_le_bytes().into_iter().take(bytes));
                files.push((format!("{path}.{word}.bin"), table.collect()));
            }
        }
        files
    }
}
