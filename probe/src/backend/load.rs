//! Loading a validated library, and swapping it for another while calls go on.

use super::validate::Validated;
use crate::analyze::{Analysis, Identity};
use crate::error::Error;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

/// A loaded library. It stays loaded until the last handle is dropped: this one, its clones, and every
/// [`Function`] taken from it.
#[derive(Debug)]
pub struct Backend {
    library: libloading::Library,
    path: PathBuf,
    analysis: Analysis,
    identity: Option<Identity>,
}

/// Every library that is loaded, for as long as it is: the system hands out the library it has for a path, even if
/// the file was replaced.
static LOADED: Mutex<Vec<Weak<Backend>>> = Mutex::new(Vec::new());

impl Validated {
    /// Loads the library, if its files are still as they were when it was validated, and if they are what the loader
    /// takes: what the process has mapped, the libraries that it had loaded before included, is compared with what
    /// was validated, before loading and afterwards.
    ///
    /// Libraries of the system may lie in another folder than was foreseen; those are validated where they are
    /// mapped. What [`Report::unfollowed`](super::Report::unfollowed) names was not validated, and is the loader's choice.
    ///
    /// # Errors
    /// [`Error::Changed`], [`Error::StillLoaded`] for a file that was replaced while its predecessor is in use,
    /// [`Error::OtherDependency`] where calls would go to another file than the one that was validated,
    /// [`Error::NotValidated`] where a limit was reached, [`Error::Unseen`] on systems other than Linux for a library
    /// that names folders for libraries that it needs, or [`Error::Load`] with the words of the system's loader.
    ///
    /// # Safety
    /// Loading runs the library's initializers, and those of all libraries that it needs: validation tells what the
    /// files hold, not that their code is sound. They must not rely on anything that this process does otherwise,
    /// such as another copy of ggml that has been loaded with global visibility.
    pub unsafe fn load(&self) -> Result<Arc<Backend>, Error> {
        // Held until the new library is entered, so that two threads can't load one path at the same time.
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_covered()?;
        self.unchanged()?;
        self.is_what_is_mapped(false)?;
        loaded.retain(|backend| backend.strong_count() > 0);
        let identity = self.identity();
        let replaced = |other: Arc<Backend>| other.path == self.path() && other.identity.as_ref() != identity;
        if loaded.iter().filter_map(Weak::upgrade).any(replaced) {
            return Err(Error::StillLoaded { path: self.path().to_owned() });
        }
        // SAFETY: the caller answers for the initializers; the file is a library for this processor.
        let library = unsafe { open(self.path()) }
            .map_err(|source| Error::Load { path: self.path().to_owned(), source })?;
        // A file may have come into the place of another between the comparison and the loading. Then the library is
        // unloaded again here.
        self.is_what_is_mapped(true)?;
        self.unchanged()?;
        let backend = Arc::new(Backend {
            library,
            path: self.path().to_owned(),
            analysis: self.analysis().clone(),
            identity: identity.cloned(),
        });
        loaded.push(Arc::downgrade(&backend));
        Ok(backend)
    }
}

/// Every symbol is resolved now, so that a missing one is an error here and no crash later; none becomes visible to
/// other libraries.
///
/// # Safety
/// As [`libloading::Library::new`].
#[cfg(unix)]
unsafe fn open(path: &Path) -> Result<libloading::Library, libloading::Error> {
    use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
    // SAFETY: handed on to the caller.
    unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.map(Into::into)
}

/// The library's own folder is searched for those that it needs.
///
/// # Safety
/// As [`libloading::Library::new`].
#[cfg(windows)]
unsafe fn open(path: &Path) -> Result<libloading::Library, libloading::Error> {
    use libloading::os::windows::{LOAD_WITH_ALTERED_SEARCH_PATH, Library};
    // SAFETY: handed on to the caller.
    unsafe { Library::load_with_flags(path, LOAD_WITH_ALTERED_SEARCH_PATH) }.map(Into::into)
}

impl Backend {
    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What is in it.
    pub fn analysis(&self) -> &Analysis {
        &self.analysis
    }

    /// A function of the library, which keeps the library loaded.
    ///
    /// # Errors
    /// [`Error::Symbol`] if there is none of this name.
    ///
    /// # Safety
    /// `F` must be the type of the function: `unsafe extern "C" fn(..) -> ..` with the arguments that the
    /// library's headers state.
    pub unsafe fn function<F: Copy>(self: &Arc<Self>, name: &str) -> Result<Function<F>, Error> {
        // SAFETY: the caller answers for the type. The address is copied out of the symbol; what keeps it valid is
        // the handle beside it.
        let call = unsafe { self.library.get::<F>(name.as_bytes()) }.map(|symbol| *symbol);
        let call = call.map_err(|source| Error::Symbol {
            path: self.path.clone(),
            symbol: name.to_owned(),
            source,
        })?;
        Ok(Function { call, backend: Arc::clone(self) })
    }
}

/// A function of a loaded library, together with what keeps the library loaded.
#[derive(Clone, Debug)]
pub struct Function<F> {
    call: F,
    backend: Arc<Backend>,
}

impl<F> Function<F> {
    /// The library it is from.
    pub fn backend(&self) -> &Arc<Backend> {
        &self.backend
    }
}

impl<F> std::ops::Deref for Function<F> {
    type Target = F;

    /// The function. A copy of it must not be called after this handle is gone.
    fn deref(&self) -> &F {
        &self.call
    }
}

/// The library in use, which can be swapped for another.
///
/// Who calls takes a handle first and keeps it until the call is over. Swapping changes what the next one gets;
/// calls under way finish in the library in which they began, which is unloaded after the last of them.
#[derive(Debug)]
pub struct Slot {
    current: RwLock<(Arc<Backend>, u64)>,
}

impl Slot {
    /// Begins with this library.
    pub fn new(backend: Arc<Backend>) -> Slot {
        Slot { current: RwLock::new((backend, 0)) }
    }

    /// The library in use.
    pub fn current(&self) -> Arc<Backend> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner).0)
    }

    /// How often it was swapped.
    pub fn generation(&self) -> u64 {
        self.current.read().unwrap_or_else(PoisonError::into_inner).1
    }

    /// Loads another library and puts it into use; returns the one that was. If anything fails, the old one stays
    /// in use.
    ///
    /// # Errors
    /// As [`Validated::load`].
    ///
    /// # Safety
    /// As [`Validated::load`].
    pub unsafe fn reload(&self, validated: &Validated) -> Result<Arc<Backend>, Error> {
        // Loading takes long; nobody has to wait for it.
        // SAFETY: the caller answers for the library.
        let new = unsafe { validated.load() }?;
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        current.1 += 1;
        Ok(std::mem::replace(&mut current.0, new))
    }
}
