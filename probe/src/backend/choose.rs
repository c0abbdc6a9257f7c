//! The C++ backends of this machine, each with its device and the reason why it can or can't be used, and the order
//! in which they are preferred.

use crate::discover::Discovery;
use crate::error::Error;
use crate::families::{Device, Family, Job, SIGNS, shows_products};
use crate::printable::printable_list;
use crate::symbols::identifier;
use std::sync::{PoisonError, RwLock};

/// The project that a backend is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Project {
    /// bitnet.cpp.
    Bitnet,
    /// llama.cpp and ggml.
    Llama,
}

impl std::fmt::Display for Project {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Project::Bitnet => "bitnet.cpp",
            Project::Llama => "llama.cpp",
        })
    }
}

/// Whether a backend can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// It can: these files have it, shown by this function.
    Found {
        /// The files.
        files: Vec<String>,
        /// A function that shows it.
        shown_by: String,
    },
    /// It can't, for this reason.
    Absent {
        /// Why not.
        reason: String,
        /// What would help.
        help: &'static str,
    },
}

/// A backend that is not gristmill's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct External {
    /// Whose it is.
    pub project: Project,
    /// Where it computes.
    pub device: Device,
    /// Whether it can be used.
    pub state: State,
    /// The names of functions for products that its libraries define.
    products: Vec<String>,
}

impl External {
    /// All that are looked for, best first for somebody who has no preference.
    pub const ALL: [(Project, Device); 4] = [
        (Project::Bitnet, Device::Cuda),
        (Project::Llama, Device::Cuda),
        (Project::Bitnet, Device::Cpu),
        (Project::Llama, Device::Cpu),
    ];

    /// Its name: `llama.cpp/cpu`.
    pub fn name(&self) -> String {
        name(self.project, self.device)
    }

    /// Whether it was found.
    pub fn is_found(&self) -> bool {
        match self.state {
            State::Found { .. } => true,
            State::Absent { .. } => false,
        }
    }

    /// The function that shows that it computes products of a format, by gristmill's name of the format and its
    /// number in GGUF. `None` also where a backend has them without saying so in its names.
    pub fn product(&self, format: &str, gguf: Option<u32>) -> Option<&str> {
        let fits = |symbol: &&String| shows_products(symbol, format, gguf, self.device);
        self.products.iter().find(fits).map(String::as_str)
    }
}

fn name(project: Project, device: Device) -> String {
    format!("{project}/{device}")
}

/// The backends among what was found.
pub fn externals(discovery: &Discovery) -> Vec<External> {
    External::ALL.into_iter().map(|(project, device)| external(discovery, project, device)).collect()
}

fn external(discovery: &Discovery, project: Project, device: Device) -> External {
    let mut files = Vec::new();
    let mut shown_by = None;
    let mut products = Vec::new();
    for library in discovery.libraries() {
        let file = library.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut signs = library.image.defined_names().filter(|symbol| shows(symbol, project, device));
        if let Some(sign) = signs.next() {
            shown_by.get_or_insert_with(|| sign.to_owned());
            files.push(file);
        }
        products.extend(library.image.defined_names().filter(|symbol| is_product(symbol)).map(str::to_owned));
    }
    let state = match shown_by {
        Some(shown_by) => State::Found { files, shown_by },
        None => {
            products.clear();
            absent(discovery, project, device)
        }
    };
    External { project, device, state, products }
}

fn is_product(symbol: &str) -> bool {
    symbol.starts_with("ggml_vec_dot_")
        || identifier(symbol) == "mul_mat_q_case"
        || SIGNS.iter().any(|sign| sign.job == Job::Product && sign.pattern.fits(symbol))
}

/// Whether a function shows that a backend is there.
fn shows(symbol: &str, project: Project, device: Device) -> bool {
    match (project, device) {
        (Project::Llama, Device::Cuda) => symbol.starts_with("ggml_backend_cuda_"),
        (Project::Llama, Device::Cpu) => {
            matches!(symbol, "ggml_backend_cpu_init" | "ggml_cpu_init")
                || symbol.starts_with("ggml_vec_dot_q8_0_")
        }
        (Project::Bitnet, device) => SIGNS.iter().any(|sign| {
            let bitnet = matches!(sign.family, Family::I2S | Family::Tl1 | Family::Tl2);
            bitnet && sign.job == Job::Product && sign.device == device && sign.pattern.fits(symbol)
        }),
    }
}

fn absent(discovery: &Discovery, project: Project, device: Device) -> State {
    let help = match (project, device) {
        (Project::Bitnet, Device::Cpu) => "set BITNET_CPP_DIR to a build of bitnet.cpp",
        (Project::Bitnet, Device::Cuda) => {
            "set BITNET_CPP_DIR to bitnet.cpp with gpu/bitnet_kernels compiled"
        }
        (Project::Llama, Device::Cpu) => "set BITNET_CPP_DIR to a build of llama.cpp",
        (Project::Llama, Device::Cuda) => "set BITNET_CPP_DIR to a build of llama.cpp with -DGGML_CUDA=ON",
    };
    let reason = if discovery.is_empty() {
        match discovery.variables.first() {
            Some((variable, _)) => format!("no library is where {variable} points"),
            None => String::from("no library was found"),
        }
    } else {
        let what = match device {
            Device::Cpu => "products for the processor",
            Device::Cuda => "CUDA backend",
        };
        let of = match project {
            Project::Bitnet => " of bitnet.cpp",
            Project::Llama => "",
        };
        format!("no {what}{of} in {}", printable_list(&discovery.file_names()))
    };
    State::Absent { reason, help }
}

/// The backends of a machine in an order of preference that can be changed while the program runs.
#[derive(Debug)]
pub struct Backends {
    all: Vec<External>,
    preference: RwLock<Vec<(Project, Device)>>,
}

impl Backends {
    /// What was found, in the usual order: CUDA before the processor, bitnet.cpp before llama.cpp.
    pub fn new(discovery: &Discovery) -> Backends {
        Backends { all: externals(discovery), preference: RwLock::new(External::ALL.to_vec()) }
    }

    /// All of them, found or not.
    pub fn all(&self) -> &[External] {
        &self.all
    }

    /// Sets the order, by names such as `llama.cpp/cpu`. Backends that are not named are not used.
    ///
    /// # Errors
    /// [`Error::UnknownWord`] for a name that is none; the order then stays as it was.
    pub fn set_preference<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Result<(), Error> {
        let parse = |word: &str| {
            let known = External::ALL.into_iter().find(|(project, device)| name(*project, *device) == word);
            known.ok_or_else(|| Error::UnknownWord {
                word: word.to_owned(),
                what: "C++ backend",
                known: External::ALL.map(|(project, device)| name(project, device)).join(", "),
            })
        };
        let order = names.into_iter().map(parse).collect::<Result<Vec<_>, Error>>()?;
        *self.preference.write().unwrap_or_else(PoisonError::into_inner) = order;
        Ok(())
    }

    /// The first backend in the order of preference that was found and computes products of a format.
    ///
    /// # Errors
    /// [`Error::NoBackend`] with the reason for each.
    pub fn choose(&self, format: &str, gguf: Option<u32>) -> Result<&External, Error> {
        let order = self.preference.read().unwrap_or_else(PoisonError::into_inner).clone();
        let mut reasons = Vec::new();
        for (project, device) in &order {
            let known =
                self.all.iter().find(|external| (external.project, external.device) == (*project, *device));
            let Some(external) = known else { continue };
            match (&external.state, external.product(format, gguf)) {
                (State::Found { .. }, Some(_)) => return Ok(external),
                (State::Found { .. }, None) => {
                    reasons.push(format!("{} names no products of `{format}`", external.name()));
                }
                (State::Absent { reason, .. }, _) => reasons.push(format!("{}: {reason}", external.name())),
            }
        }
        let others = self.all.iter().filter(|e| !order.contains(&(e.project, e.device)));
        reasons.extend(others.map(|external| format!("{}: not in the order of preference", external.name())));
        Err(Error::NoBackend { reasons: reasons.join("; ") })
    }
}
