//! Where tile sizes come from: what the caller says, or the configuration that a file was converted with.

use super::{ImportError, Tiles};

/// Tile sizes of the tensors of a file, by the shape of a tensor. GGUF files don't hold them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TileSizes {
    /// For a shape, or for every shape that is not named.
    named: Vec<(Option<(usize, usize)>, Tiles)>,
    /// The text of a `kernel_config.ini`.
    config: Option<String>,
}

impl TileSizes {
    /// None.
    pub fn new() -> TileSizes {
        TileSizes::default()
    }

    /// The same with `tiles` for tensors of `n` rows of `k`, or with `None` for all that are not named. What is said last counts, and
    /// before any configuration.
    pub fn with(mut self, shape: Option<(usize, usize)>, tiles: Tiles) -> TileSizes {
        self.named.retain(|(known, _)| *known != shape);
        self.named.push((shape, tiles));
        self
    }

    /// The same with the text of a `kernel_config.ini`, as bitnet.cpp's converters write and read it.
    ///
    /// # Errors
    /// [`ImportError::Config`].
    pub fn with_config(mut self, text: &str) -> Result<TileSizes, ImportError> {
        // No tensor has this shape; whatever is wrong with the text is found on the way.
        match Tiles::from_config(text, 0, 0) {
            Ok(_) | Err(ImportError::NoTiles { .. }) => {}
            Err(error) => return Err(error),
        }
        self.config = Some(text.to_owned());
        Ok(self)
    }

    /// Those of a tensor of `n` rows of `k`.
    ///
    /// # Errors
    /// [`ImportError::NoTiles`] where a configuration has none for the shape, [`ImportError::NoTileSizes`] where nothing was said.
    pub fn of(&self, n: usize, k: usize) -> Result<Tiles, ImportError> {
        let named = |shape| self.named.iter().find(|(known, _)| *known == shape).map(|(_, tiles)| *tiles);
        if let Some(tiles) = named(Some((n, k))) {
            return Ok(tiles);
        }
        let config = self.config.as_ref().map(|text| Tiles::from_config(text, n, k));
        match (config, named(None)) {
            (Some(Ok(tiles)), _) | (Some(Err(_)) | None, Some(tiles)) => Ok(tiles),
            (Some(Err(error)), None) => Err(error),
            (None, None) => Err(ImportError::NoTileSizes { n, k }),
        }
    }
}
