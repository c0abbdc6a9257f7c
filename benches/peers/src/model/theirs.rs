//! The peer's side: a model through llama.cpp's C API, which ik_llama.cpp shares but for a few names.

use crate::error::Error;
use crate::peer::PACKAGE;
use crate::peer::library::{error_of, sys};
use std::ffi::{CString, c_char, c_void};
use std::path::Path;
use std::sync::Mutex;

/// How the peer is asked to run a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// What the record calls it.
    pub name: &'static str,
    /// Repacks weights while they are loaded (`-rtr`). llama.cpp does so by default.
    #[cfg(feature = "ik")]
    pub repack: bool,
    /// Flash attention; `None`: the default, which both have on.
    pub flash: Option<bool>,
}

/// What is measured. The first is what somebody gets who sets nothing; which is best depends on the test.
#[cfg(feature = "ik")]
pub const SETTINGS: &[Setting] = &[
    Setting { name: "as it comes", repack: false, flash: None },
    Setting { name: "repacked", repack: true, flash: None },
    Setting { name: "repacked, no flash attention", repack: true, flash: Some(false) },
];
#[cfg(feature = "ggml")]
pub const SETTINGS: &[Setting] = &[
    Setting { name: "as it comes", flash: None },
    Setting { name: "no flash attention", flash: Some(false) },
];

/// What the peer said of errors since somebody asked.
static SAID: Mutex<String> = Mutex::new(String::new());

/// Keeps lines about errors.
unsafe extern "C" fn listen(level: sys::ggml_log_level, text: *const c_char, _: *mut c_void) {
    // SAFETY: the peer passes such a string.
    if let (Some(error), Ok(mut said)) = (unsafe { error_of(level, text) }, SAID.lock()) {
        said.push_str(&error);
    }
}

/// A failure, with what the peer said of it.
fn refused(action: &str) -> Error {
    let said = SAID.lock().map(|mut said| std::mem::take(&mut *said)).unwrap_or_default();
    let said: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let why = if said.is_empty() { "it does not say why".to_owned() } else { said.join("\n  ") };
    Error::PeerModel { peer: PACKAGE, action: action.to_owned(), why }
}

/// A model in the peer, with a context for one sequence.
pub struct Model {
    model: *mut sys::llama_model,
    context: *mut sys::llama_context,
    batch: Batch,
    position: usize,
    pub vocab: usize,
    /// One for each number of threads so far, the one in use last. The peer pauses the pool before when it first computes with the
    /// next one, so none may be freed while the model lives.
    #[cfg(feature = "ggml")]
    pools: Vec<Pool>,
}

impl Model {
    /// Loads the file at `path`; `positions` in the context, and as many tokens at a time.
    pub fn load(path: &Path, setting: Setting, positions: usize) -> Result<Model, Error> {
        let name = CString::new(path.as_os_str().as_encoded_bytes())
            .map_err(|_| refused("open a file whose name holds a zero byte"))?;
        // SAFETY: these may be called at any time; the callback lives as long as the program.
        let (mut of_model, mut of_context) = unsafe {
            sys::llama_log_set(Some(listen), std::ptr::null_mut());
            sys::llama_backend_init();
            (sys::llama_model_default_params(), sys::llama_context_default_params())
        };
        of_model.n_gpu_layers = 0;
        let size = positions as u32;
        (of_context.n_ctx, of_context.n_batch, of_context.n_ubatch) = (size, size, size);
        #[cfg(feature = "ik")]
        {
            of_model.repack_tensors = setting.repack;
            if let Some(flash) = setting.flash {
                (of_model.flash_attn, of_context.flash_attn) = (flash, flash);
            }
        }
        #[cfg(feature = "ggml")]
        {
            of_context.flash_attn_type = match setting.flash {
                None => of_context.flash_attn_type,
                Some(true) => sys::LLAMA_FLASH_ATTN_TYPE_ENABLED,
                Some(false) => sys::LLAMA_FLASH_ATTN_TYPE_DISABLED,
            };
        }
        // SAFETY: the name is a string, the parameters are the peer's own with other numbers.
        let model = unsafe { sys::llama_model_load_from_file(name.as_ptr(), of_model) };
        if model.is_null() {
            return Err(refused(&format!("load `{}`", path.display())));
        }
        // SAFETY: the model was just loaded; a vocabulary belongs to it.
        let (context, vocab) = unsafe {
            let vocab = sys::llama_vocab_n_tokens(sys::llama_model_get_vocab(model));
            (sys::llama_init_from_model(model, of_context), vocab)
        };
        let mut loaded = Model {
            model,
            context,
            batch: Batch::new(positions),
            position: 0,
            vocab: usize::try_from(vocab).unwrap_or(0),
            #[cfg(feature = "ggml")]
            pools: Vec::new(),
        };
        if context.is_null() {
            return Err(refused("make a context"));
        }
        loaded.threads(1)?;
        Ok(loaded)
    }

    /// Bytes of the tensors, as the peer counts them: repacking keeps their size.
    pub fn bytes(&self) -> u64 {
        // SAFETY: the model is loaded.
        unsafe { sys::llama_model_size(self.model) }
    }

    /// Computes with so many threads from now on.
    pub fn threads(&mut self, count: usize) -> Result<(), Error> {
        // `llama-bench` of llama.cpp makes a pool too; without one, threads are made for every token.
        #[cfg(feature = "ggml")]
        {
            let pool = match self.pools.iter().position(|pool| pool.threads == count) {
                Some(at) => self.pools.remove(at),
                None => Pool::new(count)?,
            };
            // SAFETY: context and pool live, and the pool as long as this model.
            unsafe { sys::llama_attach_threadpool(self.context, pool.pool, pool.pool) };
            self.pools.push(pool);
            self.rest();
        }
        // SAFETY: the context lives.
        unsafe { sys::llama_set_n_threads(self.context, count as _, count as _) };
        Ok(())
    }

    /// Lets threads sleep that would look for work, keeping a processor from whoever is measured next.
    pub fn rest(&mut self) {
        #[cfg(feature = "ggml")]
        if let Some(pool) = self.pools.last() {
            // SAFETY: the pool lives; the next graph wakes it.
            unsafe { sys::ggml_threadpool_pause(pool.pool) };
        }
    }

    /// Forgets all tokens.
    pub fn clear(&mut self) {
        self.position = 0;
        // SAFETY: the context lives.
        unsafe {
            #[cfg(feature = "ik")]
            sys::llama_kv_cache_clear(self.context);
            #[cfg(feature = "ggml")]
            sys::llama_memory_clear(sys::llama_get_memory(self.context), false);
        }
    }

    /// Takes tokens in; logits behind each of them (`all`), or behind the last.
    pub fn feed(&mut self, tokens: &[u32], all: bool) -> Result<(), Error> {
        self.batch.fill(tokens, self.position, all)?;
        // SAFETY: context and batch live; the batch holds as many tokens as it says.
        let status = unsafe {
            let status = sys::llama_decode(self.context, self.batch.batch);
            sys::llama_synchronize(self.context);
            status
        };
        if status != 0 {
            return Err(refused(&format!("take in {} tokens (status {status})", tokens.len())));
        }
        self.position += tokens.len();
        Ok(())
    }

    /// The logits behind token `index` of those last taken in.
    pub fn logits(&self, index: usize) -> Result<&[f32], Error> {
        // SAFETY: the context lives; it gives a null pointer for tokens without logits.
        let logits = unsafe { sys::llama_get_logits_ith(self.context, index as i32) };
        if logits.is_null() {
            return Err(refused(&format!("give the logits of token {index}")));
        }
        // SAFETY: a row of logits has a number for each token; it stays until the next decode, which borrows this value mutably.
        Ok(unsafe { std::slice::from_raw_parts(logits, self.vocab) })
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        // SAFETY: both were made by the peer and nobody else has them; either may be null for a context that could not be made. The
        // pools, which are dropped later, outlive them.
        unsafe {
            if !self.context.is_null() {
                sys::llama_free(self.context);
            }
            #[cfg(feature = "ik")]
            sys::llama_free_model(self.model);
            #[cfg(feature = "ggml")]
            sys::llama_model_free(self.model);
        }
    }
}

/// Threads that stay awake between tokens.
#[cfg(feature = "ggml")]
struct Pool {
    pool: *mut sys::ggml_threadpool,
    threads: usize,
}

#[cfg(feature = "ggml")]
impl Pool {
    fn new(count: usize) -> Result<Pool, Error> {
        // SAFETY: the parameters are the peer's own.
        let pool = unsafe {
            let mut params = sys::ggml_threadpool_params_default(count as i32);
            sys::ggml_threadpool_new(&raw mut params)
        };
        if pool.is_null() { Err(refused("make threads")) } else { Ok(Pool { pool, threads: count }) }
    }
}

#[cfg(feature = "ggml")]
impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: the peer made it, and no context that computes has it any more.
        unsafe { sys::ggml_threadpool_free(self.pool) };
    }
}

/// Tokens for a decode.
struct Batch {
    batch: sys::llama_batch,
    room: usize,
}

impl Batch {
    fn new(room: usize) -> Batch {
        // SAFETY: it allocates for so many tokens, of one sequence each.
        Batch { batch: unsafe { sys::llama_batch_init(room as i32, 0, 1) }, room }
    }

    fn fill(&mut self, tokens: &[u32], first: usize, all: bool) -> Result<(), Error> {
        if tokens.len() > self.room {
            return Err(refused(&format!(
                "take in {} tokens at a time, {} at most",
                tokens.len(),
                self.room
            )));
        }
        self.batch.n_tokens = tokens.len() as i32;
        for (index, token) in tokens.iter().enumerate() {
            // SAFETY: the batch was made for more tokens than `index`, with one sequence for each.
            unsafe {
                *self.batch.token.add(index) = *token as i32;
                *self.batch.pos.add(index) = (first + index) as i32;
                *self.batch.n_seq_id.add(index) = 1;
                **self.batch.seq_id.add(index) = 0;
                *self.batch.logits.add(index) = i8::from(all || index + 1 == tokens.len());
            }
        }
        Ok(())
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        // SAFETY: `llama_batch_init` made it.
        unsafe { sys::llama_batch_free(self.batch) };
    }
}
