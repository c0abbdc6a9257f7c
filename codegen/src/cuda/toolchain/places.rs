//! Where wheels put CUDA tools.

use super::env::{Env, exe, is_program};
use super::problem::{Problem, words};
use std::path::{Path, PathBuf};

/// The folders of packages in a Python environment's root.
pub fn site_packages(root: &Path) -> Vec<PathBuf> {
    let mut sites = Vec::new();
    for lib in ["lib", "lib64"] {
        for folder in folders(&root.join(lib)) {
            let name = folder.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
            if name.starts_with("python") {
                sites.push(folder.join("site-packages"));
            }
        }
    }
    sites.push(root.join("Lib").join("site-packages"));
    let mut seen = Vec::new();
    sites.retain(|site| match site.canonicalize() {
        // lib64 is a link to lib in a virtual environment.
        Ok(real) if !seen.contains(&real) => {
            seen.push(real);
            true
        }
        Ok(_) | Err(_) => false,
    });
    sites
}

/// Asks the Python on the path where packages are. Isolated from the current folder, so that no file there is run.
pub fn ask_python(env: &Env) -> Result<Vec<PathBuf>, Problem> {
    let python = env
        .on_path("python3")
        .or_else(|| env.on_path("python"))
        .ok_or_else(|| Problem::Python("no python3 there".to_string()))?;
    let script = "import site, sysconfig\n\
                  paths = sysconfig.get_paths()\n\
                  for path in paths['purelib'], paths['platlib'], site.getusersitepackages(): print(path)";
    let output = env
        .command(&python)
        .args(["-I", "-c", script])
        .output()
        .map_err(|error| Problem::NotRun { path: python.clone(), reason: error.to_string() })?;
    if !output.status.success() {
        let said = words(&String::from_utf8_lossy(&output.stderr));
        return Err(Problem::Python(format!("{} does not tell its folders: {said}", python.display())));
    }
    let mut sites: Vec<PathBuf> = Vec::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let path = PathBuf::from(line.trim());
        if path.is_dir() && !sites.contains(&path) {
            sites.push(path);
        }
    }
    if sites.is_empty() {
        return Err(Problem::Python(format!("{} has no folder of packages", python.display())));
    }
    Ok(sites)
}

/// Whether there are wheels of CUDA parts at all.
pub fn has_wheels(site: &Path) -> bool {
    !wheel_roots(site).is_empty()
}

/// Folders of one toolkit each: `nvidia/cu13` from CUDA 13 on, `nvidia/cuda_nvcc` and others before.
fn wheel_roots(site: &Path) -> Vec<PathBuf> {
    folders(&site.join("nvidia"))
        .into_iter()
        .filter(|folder| {
            folder.file_name().is_some_and(|name| {
                let name = name.to_string_lossy();
                name.starts_with("cu") && name[2..].bytes().all(|b| b.is_ascii_digit())
                    || name == "cuda_nvcc"
                    || name == "cuda_nvrtc"
            })
        })
        .collect()
}

/// Compiler drivers in wheels, and what looks like one but is none.
pub fn wheel_compilers(site: &Path) -> Vec<(PathBuf, Option<Problem>)> {
    let mut found = Vec::new();
    for root in wheel_roots(site) {
        let nvcc = root.join("bin").join(exe("nvcc"));
        let ptxas = root.join("bin").join(exe("ptxas"));
        if is_program(&nvcc) {
            found.push((nvcc, None));
        } else if is_program(&ptxas) {
            found.push((nvcc, Some(Problem::AssemblerOnly(ptxas))));
        }
    }
    found
}

/// Where NVRTC may be: toolkit folders, wheels, and what the loader knows.
pub fn nvrtc_libraries(env: &Env, sites: &[(String, PathBuf)]) -> Vec<(String, PathBuf)> {
    let mut found = Vec::new();
    let mut folder = |place: &str, folder: &Path| {
        for path in libraries(folder) {
            found.push((format!("NVRTC, {place}"), path));
        }
    };
    for name in ["CUDA_HOME", "CUDA_PATH"] {
        if let Some(root) = env.get(name) {
            for lib in ["lib64", "lib", "bin"] {
                folder(name, &Path::new(root).join(lib));
            }
        }
    }
    for (place, site) in sites {
        for root in wheel_roots(site) {
            for lib in ["lib", "bin"] {
                folder(place, &root.join(lib));
            }
        }
    }
    let names: &[&str] = if cfg!(windows) {
        &["nvrtc64_130_0.dll", "nvrtc64_120_0.dll"]
    } else {
        &["libnvrtc.so.13", "libnvrtc.so.12"]
    };
    found.extend(names.iter().map(|name| ("NVRTC, system".to_string(), PathBuf::from(name))));
    found
}

/// The NVRTC of the toolkit whose programs are in `bin`.
pub fn nvrtc_beside(bin: &Path) -> Vec<PathBuf> {
    let Some(root) = bin.parent() else { return Vec::new() };
    // Toolkits of NVIDIA have lib64, a link to the last; wheels lib; conda and cross toolkits the others.
    ["lib64", "lib", "bin", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"]
        .iter()
        .flat_map(|lib| libraries(&root.join(lib)))
        .collect()
}

/// The NVRTC libraries of a folder, the newest first.
fn libraries(folder: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = files(folder)
        .into_iter()
        .filter(|path| {
            let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
            let version = name.strip_prefix("libnvrtc.so.").or_else(|| name.strip_prefix("nvrtc64_"));
            version.is_some_and(|v| v.starts_with(|c: char| c.is_ascii_digit()) && !v.contains("alt"))
        })
        .collect();
    // Links of one library have names of different length; one is enough.
    found.sort();
    let mut seen = Vec::new();
    found.retain(|path| {
        let real = path.canonicalize().unwrap_or_else(|_| path.clone());
        let new = !seen.contains(&real);
        seen.push(real);
        new
    });
    found.reverse();
    found
}

fn folders(path: &Path) -> Vec<PathBuf> {
    entries(path, Path::is_dir)
}

fn files(path: &Path) -> Vec<PathBuf> {
    entries(path, Path::is_file)
}

/// The entries of a folder in the order of their names; none if it can't be read.
fn entries(path: &Path, keep: fn(&Path) -> bool) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = std::fs::read_dir(path)
        .map(|entries| entries.filter_map(|entry| entry.ok()).map(|entry| entry.path()).collect())
        .unwrap_or_default();
    found.retain(|path| keep(path));
    found.sort();
    found
}
