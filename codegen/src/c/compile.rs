//! Units of C and C++ through the compiler that the `cc` crate finds, each with its variant's features.

use super::header;
use super::unit::{Unit, units};
use crate::Error;
use crate::plan::features;
use crate::text::joined;
use gristmill_spec::model::{C_HEADER, SpecSet};
use gristmill_spec::vocab::Arch;
use gristmill_spec::{Diagnostic, SHIPPED_PREFIX, shipped_dir};
use std::path::{Path, PathBuf};
use std::process::Command;

/// For whom and where is compiled.
#[derive(Clone, Debug)]
pub struct Target {
    /// The package that is built, whose name is part of the functions' names.
    pub package: String,
    /// What files are relative to.
    pub root: PathBuf,
    /// Where units, objects and the header are written.
    pub out: PathBuf,
    /// The architecture that is built for, as `CARGO_CFG_TARGET_ARCH` spells it.
    pub arch: String,
    /// Target triple, host triple and optimization level in place of `TARGET`, `HOST` and `OPT_LEVEL`.
    pub cargo: Option<(String, String, String)>,
    /// A compiler in place of the one that `CC` or `CXX` names or the `cc` crate knows for the target.
    pub compiler: Option<PathBuf>,
}

/// What was compiled.
#[derive(Clone, Debug, Default)]
pub struct Built {
    /// Compilers with their options, for the identity of kernels; empty where nothing was compiled.
    pub compiler: String,
    /// The objects.
    pub objects: Vec<PathBuf>,
    /// Whether one of them is C++.
    pub cpp: bool,
    /// What compilers said of what they took.
    pub warnings: Vec<String>,
}

/// Compiles all kernels of a set with a body in C or C++ that run on the target's architecture.
///
/// # Errors
/// Where a compiler or an option of it is missing, where it refuses a body, and where a file can't be written: all of them,
/// each with its place in a spec.
pub fn build(set: &SpecSet, target: &Target) -> Result<Built, Vec<Error>> {
    let mut built = Built::default();
    let mut errors = Vec::new();
    let mut compilers: [Option<Result<Compiler, Trouble>>; 2] = [None, None];
    for unit in units(set, &target.package) {
        let arch = unit.variant.isa.arch();
        if arch != Arch::Any && arch.name() != target.arch {
            continue;
        }
        let cpp = unit.body.is_cpp();
        let compiler = compilers[usize::from(cpp)].get_or_insert_with(|| {
            let compiler = Compiler::find(target, cpp);
            if let Ok(compiler) = &compiler {
                built.compiler += &compiler.words;
            }
            compiler
        });
        let compiled = match compiler {
            Ok(compiler) => compiler.compile(&unit, target),
            Err(trouble) => Err(trouble.clone()),
        };
        match compiled {
            Ok((object, warnings)) => {
                built.objects.push(object);
                built.cpp |= cpp;
                built.warnings.extend(warnings);
            }
            Err(trouble) => errors.push(trouble.at(&unit)),
        }
    }
    if errors.is_empty() { Ok(built) } else { Err(crate::error::once(errors)) }
}

/// What is wrong, without its place.
#[derive(Clone, Debug)]
struct Trouble {
    code: &'static str,
    message: String,
    help: String,
}

impl Trouble {
    fn compiler(message: String, help: impl Into<String>) -> Trouble {
        Trouble { code: "body-compiler", message, help: help.into() }
    }

    fn at(self, unit: &Unit<'_>) -> Error {
        let (file, span) = (&unit.variant.origin.file, unit.body.named.clone());
        Error::Spec(Box::new(Diagnostic::error(self.code, file, span, self.message).help(self.help)))
    }
}

/// What a command could not do.
fn unwritten(path: &Path, error: &std::io::Error) -> Trouble {
    Trouble::compiler(
        format!("can't write {}: {error}", path.display()),
        "it lies in the build's output folder",
    )
}

/// A compiler of C or of C++.
struct Compiler {
    tool: cc::Tool,
    /// As people know it: its path.
    name: String,
    /// Its version and options.
    words: String,
    cpp: bool,
    /// Of its files, without the dot.
    extension: &'static str,
    /// A file that every compiler takes.
    nothing: PathBuf,
}

impl Compiler {
    fn find(target: &Target, cpp: bool) -> Result<Compiler, Trouble> {
        let (language, variable, usual) =
            if cpp { ("C++", "CXX", "g++ or clang++") } else { ("C", "CC", "gcc or clang") };
        let help = format!(
            "install {usual} for {}, or name one in the environment variable {variable} (for one target alone \
             {variable}_TARGET); or leave this variant out",
            target.arch
        );
        let mut build = cc::Build::new();
        build.cpp(cpp).out_dir(&target.out);
        if let Some((triple, host, level)) = &target.cargo {
            build.target(triple).host(host).opt_level_str(level).debug(false).cargo_metadata(false);
        }
        if let Some(compiler) = &target.compiler {
            build.compiler(compiler);
        }
        let tool = build.try_get_compiler().map_err(|error| {
            Trouble::compiler(format!("no compiler of {language} is found: {error}"), &help)
        })?;
        let name = tool.path().display().to_string();
        if tool.is_like_msvc() {
            let message = format!("`{name}` does not name its features as GCC and Clang do");
            return Err(Trouble::compiler(message, help));
        }
        let started = |error: std::io::Error| {
            Trouble::compiler(format!("the compiler of {language} `{name}` can't be started: {error}"), &help)
        };
        let version = tool.to_command().arg("--version").output().map_err(started)?;
        let version = String::from_utf8_lossy(&version.stdout);
        let options: Vec<_> = tool.args().iter().map(|option| option.to_string_lossy()).collect();
        let words = format!("{};{};", version.lines().next().unwrap_or_default(), options.join(" "));
        let extension = if cpp { "cc" } else { "c" };
        let nothing = target.out.join(format!("gristmill_nothing.{extension}"));
        std::fs::write(&nothing, "int gristmill_nothing;\n").map_err(|error| unwritten(&nothing, &error))?;
        let compiler = Compiler { tool, name: name.clone(), words, cpp, extension, nothing };
        match compiler.run(&[], &compiler.nothing, target).map_err(started)? {
            Ok(_) => Ok(compiler),
            Err(said) => {
                let message = format!("the compiler of {language} `{name}` compiles nothing: {said}");
                Err(Trouble::compiler(message, help))
            }
        }
    }

    /// Options for all bodies: no result may depend on a compiler's liberties. A file may hold several kernels.
    fn fixed(&self) -> &'static [&'static str] {
        match self.cpp {
            true => &[
                "-fno-fast-math",
                "-ffp-contract=off",
                "-Wno-unused-function",
                "-Werror=return-type",
                "-fno-exceptions",
                "-fno-rtti",
            ],
            false => &[
                "-fno-fast-math",
                "-ffp-contract=off",
                "-Wno-unused-function",
                "-Werror=return-type",
                "-Werror=incompatible-pointer-types",
                "-Werror=int-conversion",
                "-Werror=implicit-function-declaration",
            ],
        }
    }

    /// Compiles a file; the outer error is the system's, the inner one what the compiler said.
    fn run(
        &self,
        options: &[String],
        file: &Path,
        target: &Target,
    ) -> std::io::Result<Result<(PathBuf, String), String>> {
        let object = file.with_extension(format!("{}.o", self.extension));
        let mut command: Command = self.tool.to_command();
        command
            .args(self.fixed())
            .args(options)
            .arg("-I")
            .arg(&target.out)
            .arg("-c")
            .arg(file)
            .arg("-o")
            .arg(&object);
        let output = command.output()?;
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Ok(if output.status.success() { Ok((object, said)) } else { Err(said) })
    }

    /// The object of a unit, and what the compiler said of it.
    fn compile(&self, unit: &Unit<'_>, target: &Target) -> Result<(PathBuf, Vec<String>), Trouble> {
        let started = |error: std::io::Error| {
            Trouble::compiler(
                format!("`{}` can't be started: {error}", self.name),
                "it could be a moment ago",
            )
        };
        let path = match unit.body.file.strip_prefix(SHIPPED_PREFIX) {
            Some(rest) => shipped_dir().join(rest),
            None => target.root.join(&unit.body.file),
        };
        if path.to_string_lossy().contains(['"', '\n']) {
            // The body is included by its path, for which C has no escapes.
            let message = format!("`{}` has a quote or a line break in its path", path.display());
            return Err(Trouble::compiler(message, "name its folders without them"));
        }
        let header_path = target.out.join(C_HEADER);
        std::fs::write(&header_path, header()).map_err(|error| unwritten(&header_path, &error))?;
        let file = target.out.join(format!("{}.{}", unit.symbol, self.extension));
        std::fs::write(&file, unit.text(&path)).map_err(|error| unwritten(&file, &error))?;
        let options = options(unit);
        let said = match self.run(&options, &file, target).map_err(started)? {
            Ok((object, said)) => return Ok((object, said.lines().map(str::to_owned).collect())),
            Err(said) => said,
        };
        // Is it an option, or the body?
        for option in &options {
            let alone = [option.clone()];
            if let Err(said) = self.run(&alone, &self.nothing, target).map_err(started)? {
                let message =
                    format!("`{}` does not know `{option}`, which `{}` needs", self.name, unit.kernel);
                let first = said.lines().next().unwrap_or_default();
                return Err(Trouble::compiler(
                    message,
                    format!("it says: {first}\ntake a newer compiler, or leave this variant out"),
                ));
            }
        }
        Err(Trouble {
            code: "body-refused",
            message: format!("`{}` refuses `{}`, the body of `{}`", self.name, unit.body.file, unit.kernel),
            help: format!("it says:\n{said}"),
        })
    }
}

/// A variant's features as options.
fn options(unit: &Unit<'_>) -> Vec<String> {
    let features = features(unit.variant);
    let words = features.iter().map(|feature| feature.c_option());
    match unit.variant.isa.arch() {
        Arch::Any => Vec::new(),
        Arch::X86 => words.map(str::to_owned).collect(),
        Arch::Aarch64 => vec![format!("-march=armv8-a+{}", joined(words, "+"))],
    }
}
