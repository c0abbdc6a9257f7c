//! `gristmill doctor`: what this machine's processor is, and what there is for CUDA, in this binary, for the next build, and in this
//! machine.

use super::error::{CliError, Outcome};
use super::json::print_json;
use gristmill::registry::{Code, CudaBuild};
use gristmill::vocab::CudaArch;
use gristmill::{CpuProfile, CudaVersion, REGISTRY, Topology};
use gristmill_codegen::cuda::settings::{self, Settings};
use gristmill_codegen::cuda::toolchain::{
    Driver, DriverError, PIP_LINE, PIP_LINE_12, PIP_TOOLS_LINE, probe_driver,
};
use gristmill_codegen::cuda::{Discovery, Env, Toolchain, discover};
use gristmill_records::doctor as records;
use std::io::Write;
use std::path::PathBuf;

/// The driver's number from which on machine code of CUDA 13 runs.
const NEWER_CODE: i32 = 13_000;

/// Say where processors, caches and memory are, which CUDA compiler and driver there are, where they were looked for, and what to install
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
    /// Measure how fast each NUMA node reads its memory; takes some hundred MB and a second a node
    #[arg(long)]
    bandwidth: bool,
    /// Describe another machine's nodes, cores and caches: a copy of its /sys/devices/system
    #[arg(long, value_name = "DIR", conflicts_with = "bandwidth")]
    topology: Option<PathBuf>,
}

/// Milliseconds in which a node's memory is read.
const BANDWIDTH_MS: u32 = 200;

pub fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<Outcome, CliError> {
    let env = Env::of_process();
    let settings = Settings::read(&env);
    let discovery = discover(&env, None);
    let driver = probe_driver();
    let topology = match &arguments.topology {
        Some(folder) if !folder.join("node").is_dir() && !folder.join("cpu").is_dir() => {
            return Err(CliError::usage(
                format!("{} has neither a folder `node` nor a folder `cpu`", folder.display()),
                "copy them from the machine's /sys/devices/system",
            ));
        }
        Some(folder) => Topology::read(folder),
        None if arguments.bandwidth => {
            let nodes = CpuProfile::measured(BANDWIDTH_MS).topology.nodes;
            Topology { nodes, ..Topology::of_this_machine() }
        }
        None => Topology::of_this_machine(),
    };
    let advice = advice(&discovery, &driver, settings.as_ref().err().map(ToString::to_string));
    if arguments.json {
        let set = settings::VARIABLES
            .iter()
            .filter_map(|&name| Some((name.to_owned(), env.get(name)?.to_string_lossy().into_owned())));
        let looked = discovery.looked.iter().map(|looked| records::Looked {
            place: looked.place.clone(),
            why_not: looked.why_not.to_string(),
        });
        let value = records::Doctor {
            processor: topology_json(&topology),
            built: built_json(),
            compiler: discovery.found.as_ref().map(compiler_json),
            looked: looked.collect(),
            driver: driver_json(&driver),
            environment: set.collect(),
            advice,
        };
        print_json(out, &value)?;
        return Ok(Outcome::Yes);
    }
    writeln!(out, "processor")?;
    for line in topology.to_string().lines() {
        writeln!(out, "  {line}")?;
    }
    writeln!(out, "\nthis binary\n  {}", built_words())?;
    writeln!(out, "\ncompiler for the next build")?;
    match &discovery.found {
        Some(found) => {
            writeln!(out, "  {found}")?;
            if let Toolchain::Nvcc(nvcc) = found {
                writeln!(out, "  cicc {}, ptxas {} ({})", nvcc.cicc, nvcc.assembler, nvcc.ptxas.display())?;
            }
            writeln!(out, "  builds for: {}", archs(found))?;
        }
        None => writeln!(out, "  none")?,
    }
    if !discovery.looked.is_empty() {
        let before = if discovery.found.is_some() { " before" } else { "" };
        writeln!(out, "  looked at{before}:")?;
        for looked in &discovery.looked {
            writeln!(out, "    {}: {}", looked.place, looked.why_not)?;
        }
    }
    writeln!(out, "\ndriver")?;
    match &driver {
        Ok(driver) => {
            writeln!(out, "  supports CUDA up to {}", cuda_version(driver.version))?;
            for (index, device) in driver.devices.iter().enumerate() {
                let (major, minor) = device.cc;
                writeln!(out, "  cuda:{index}: {}, compute capability {major}.{minor}", device.name)?;
                let Sensors { temperature, throttled_by } = Sensors::read(index);
                if let Some(degrees) = temperature {
                    writeln!(out, "    {degrees} degrees Celsius")?;
                }
                match throttled_by.as_deref() {
                    None => {}
                    Some([]) => writeln!(out, "    nothing lowers its clock")?,
                    Some(reasons) => writeln!(out, "    its clock is lowered by: {}", reasons.join(", "))?,
                }
            }
        }
        Err(error) => writeln!(out, "  {error}")?,
    }
    let set: Vec<String> = settings::VARIABLES
        .iter()
        .filter_map(|name| Some(format!("  {name}={}", env.get(name)?.to_string_lossy())))
        .collect();
    if !set.is_empty() {
        writeln!(out, "\nenvironment\n{}", set.join("\n"))?;
    }
    if !advice.is_empty() {
        writeln!(out, "\nwhat to do")?;
        for line in &advice {
            writeln!(out, "  {line}")?;
        }
    }
    Ok(Outcome::Yes)
}

/// What stands between this machine and kernels on a GPU, each with what helps.
fn advice(
    discovery: &Discovery,
    driver: &Result<Driver, DriverError>,
    bad_settings: Option<String>,
) -> Vec<String> {
    let mut lines: Vec<String> = bad_settings.into_iter().collect();
    let old_driver = driver.as_ref().ok().filter(|driver| driver.version < NEWER_CODE);
    match (&discovery.found, REGISTRY.cuda) {
        (None, _) => {
            // PTX of this one, which is given an older version, is compiled by every driver.
            lines.push(format!("compiler without root rights, about 350 MB, into the active Python environment: {PIP_LINE}"));
            lines.push(format!("tools that look into images, only for the tests: {PIP_TOOLS_LINE}"));
        }
        (Some(_), CudaBuild::FeatureOff) => {
            lines.push("CUDA kernels in this binary: cargo build --release --features cuda".to_owned());
        }
        (Some(_), CudaBuild::NoToolchain { .. }) => lines.push(
            "the compiler was not there when this binary was built: touch build.rs && cargo build --release --features cuda"
                .to_owned(),
        ),
        (Some(_), CudaBuild::Built { .. }) => {}
    }
    // With nvcc there is an assembler, by which PTX is given a version that every driver compiles.
    if let (Some(driver), Some(Toolchain::Nvrtc(found))) = (old_driver, &discovery.found)
        && i32::from(found.version.major) * 1000 >= NEWER_CODE
    {
        lines.push(format!(
            "the driver supports CUDA {}, and takes neither machine code nor PTX of this compiler by itself: update the driver, or give the build nvcc, whose PTX every driver compiles ({PIP_LINE}), or the last compiler whose machine code this driver takes ({PIP_LINE_12}, {}=.../libnvrtc.so.12 and {}={})",
            cuda_version(driver.version),
            settings::NVRTC,
            settings::ARCHS,
            archs_of(driver)
        ));
    }
    if !matches!(REGISTRY.cuda, CudaBuild::Built { .. }) {
        return lines;
    }
    match driver {
        Ok(driver) => {
            let version = CudaVersion::from_number(u32::try_from(driver.version).unwrap_or_default());
            for device in driver.devices.iter().filter(|device| !is_served(device.cc, version)) {
                lines.push(format!(
                    "this binary has kernels without an image for {} and its driver: {}={} cargo build --release --features cuda",
                    device.name,
                    settings::ARCHS,
                    CudaArch::of_device(device.cc)
                ));
            }
        }
        Err(DriverError::Absent(_)) => {
            lines.push("kernels of this binary need the NVIDIA driver (libcuda.so.1); in a container, pass the GPU through".to_owned());
        }
        Err(DriverError::Stub | DriverError::NoDevice | DriverError::Failed { .. }) => {}
    }
    lines
}

/// Whether every kernel that is for such a device has an image that it is given by such a driver, machine code or PTX. PTX serves as well.
fn is_served(cc: (u8, u8), driver: CudaVersion) -> bool {
    let mut codes = REGISTRY.entries.iter().filter_map(|entry| match &entry.code {
        Code::Cuda(code) if code.min_cc <= cc => Some(code),
        _ => None,
    });
    codes.all(|code| {
        // One that another architecture alone has is no loss here.
        let is_for = |image: &gristmill::registry::CudaImage| !image.arch.specific || image.arch.runs_on(cc);
        !code.images.iter().any(is_for) || code.images.iter().any(|image| image.serves(cc, driver))
    })
}

/// The architectures of a driver's devices, as a build takes them.
fn archs_of(driver: &Driver) -> String {
    let mut archs: Vec<CudaArch> =
        driver.devices.iter().map(|device| CudaArch::of_device(device.cc)).collect();
    archs.sort_unstable();
    archs.dedup();
    archs.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

fn archs(toolchain: &Toolchain) -> String {
    toolchain.archs().iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// 12090 is 12.9.
fn cuda_version(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

fn built_words() -> String {
    match REGISTRY.cuda {
        CudaBuild::FeatureOff => "was built without the cargo feature `cuda`".to_owned(),
        CudaBuild::NoToolchain { looked } => {
            let mut text = "has the feature `cuda`, but no compiler was found when it was built".to_owned();
            for place in looked {
                text.push_str("\n    ");
                text.push_str(place);
            }
            text
        }
        CudaBuild::Built { compiler, architectures } => {
            let archs: Vec<String> = architectures.iter().map(ToString::to_string).collect();
            format!("holds images for {}, compiled by {compiler}", archs.join(", "))
        }
    }
}

fn built_json() -> records::Built {
    let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    match REGISTRY.cuda {
        CudaBuild::FeatureOff => records::Built::FeatureOff,
        CudaBuild::NoToolchain { looked } => records::Built::NoToolchain { looked: texts(looked) },
        CudaBuild::Built { compiler, architectures } => records::Built::Built {
            compiler: compiler.to_owned(),
            architectures: architectures.iter().map(ToString::to_string).collect(),
        },
    }
}

fn topology_json(topology: &Topology) -> records::Processor {
    let distance =
        |(to, distance): &(usize, u32)| records::Distance { to: *to as u64, distance: u64::from(*distance) };
    let nodes = topology.nodes.iter().map(|node| records::Node {
        node: node.id as u64,
        processors: node.cpus.clone(),
        memory_bytes: node.memory,
        distances: node.distances.iter().map(distance).collect(),
        read_mb_s: node.read_mb_s,
    });
    let caches = topology.caches.iter().map(|cache| records::Cache {
        level: u64::from(cache.level),
        instructions: cache.instructions,
        bytes: cache.bytes.map(|bytes| bytes as u64),
        processors: cache.cpus.clone(),
    });
    records::Processor {
        nodes: nodes.collect(),
        cores: topology.cores.clone(),
        caches: caches.collect(),
        problems: topology.problems.clone(),
    }
}

fn compiler_json(found: &Toolchain) -> records::Compiler {
    let kind = match found {
        Toolchain::Images(_) => "images",
        Toolchain::Nvcc(_) => "nvcc",
        Toolchain::Nvrtc(_) => "nvrtc",
    };
    records::Compiler {
        kind: kind.to_owned(),
        identity: found.identity().to_string(),
        path: found.path().display().to_string(),
        architectures: found.archs().iter().map(ToString::to_string).collect(),
    }
}

fn driver_json(driver: &Result<Driver, DriverError>) -> records::Driver {
    match driver {
        Ok(driver) => {
            let devices = driver.devices.iter().enumerate().map(|(index, device)| {
                let Sensors { temperature, throttled_by } = Sensors::read(index);
                records::Device {
                    name: device.name.clone(),
                    compute_capability: format!("{}.{}", device.cc.0, device.cc.1),
                    temperature,
                    throttled_by: throttled_by.map(|all| all.into_iter().map(str::to_owned).collect()),
                }
            });
            records::Driver::There { cuda: cuda_version(driver.version), devices: devices.collect() }
        }
        Err(error) => records::Driver::Absent { error: error.to_string() },
    }
}

/// What the sensors of a GPU say, where the feature `nvml` is on and NVIDIA's management library is installed.
#[derive(Default)]
struct Sensors {
    temperature: Option<u32>,
    throttled_by: Option<Vec<&'static str>>,
}

impl Sensors {
    #[cfg(feature = "nvml")]
    fn read(index: usize) -> Sensors {
        let health = u32::try_from(index).ok().and_then(|index| gristmill::cuda::health(index).ok());
        health.map_or_else(Sensors::default, |health| {
            let gristmill::cuda::GpuHealth { temperature, throttled_by, .. } = health;
            Sensors { temperature, throttled_by }
        })
    }

    #[cfg(not(feature = "nvml"))]
    fn read(_: usize) -> Sensors {
        Sensors::default()
    }
}
