//! Which shipped formats a build has beside specs of one's own.

use gristmill_codegen::Builder;
use gristmill_codegen::builder::BuildError;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

/// A folder of specs, `specs`, in a folder.
fn folder(files: &[(&str, &str)]) -> Result<TempDir> {
    let root = tempfile::tempdir()?;
    for (path, text) in files {
        let path = root.path().join("specs").join(path);
        fs::create_dir_all(path.parent().unwrap_or(Path::new("")))?;
        fs::write(path, text)?;
    }
    Ok(root)
}

/// Formats and import layouts of a build, and its warnings.
fn built(builder: &Builder, root: &Path) -> std::result::Result<(Vec<String>, Vec<String>), BuildError> {
    let (_, set, warnings) = builder.compile(root, "own".to_owned(), String::new())?;
    let formats = set.formats.iter().map(|format| format.name.clone());
    Ok((formats.chain(set.imports.iter().map(|import| import.name.clone())).collect(), warnings))
}

fn refused(builder: &Builder, root: &Path) -> String {
    built(builder, root).map_or_else(|error| error.to_string(), |built| format!("{built:?}"))
}

const OWN: (&str, &str) = (
    "formats/own.toml",
    "doc = \"x\"\nblock = { elements = 32, bytes = 18 }\n[[field]]\nname = \"d\"\ntype = \"f16\"\n[[field]]\nname = \"q\"\n\
     type = \"u4\"\nlayout = { shape = [32], stride = [4], offset = 16 }\n[value]\ncode = \"q\"\nzero = 8\nscale = [\"d\"]\n",
);

#[test]
fn selections_add_up() -> Result {
    let root = folder(&[OWN])?;
    let own = Builder::new("specs");
    assert_eq!(built(&own, root.path())?.0, ["own"]);
    let named = own.clone().with_shipped(["i2_s"]).with_shipped(["q4_0"]);
    assert_eq!(built(&named, root.path())?.0, ["i2_s", "own", "q4_0"]);
    let (mixed, _) = built(&named.with_families(["bitnet"]), root.path())?;
    assert!(["i2_s", "own", "q4_0", "tq1_0"].iter().all(|name| mixed.iter().any(|m| m == name)), "{mixed:?}");
    Ok(())
}

#[test]
fn names_of_nothing_are_all_told() -> Result {
    let root = folder(&[OWN])?;
    let own = Builder::new("specs");
    let text = refused(&own.clone().with_shipped(["i2_z", "i2_s", "zzz"]), root.path());
    let head = "no shipped format is named `i2_z`, `zzz` (did you mean `i2_s`?); there are: ";
    assert!(text.starts_with(head) && !text.contains("own"), "{text}");
    assert!(refused(&own.clone().with_shipped(["own"]), root.path()).contains("is named `own`"));
    let text = refused(&own.with_families(["bitnat"]), root.path());
    assert!(text.starts_with("no shipped family is named `bitnat` (did you mean `bitnet`?)"), "{text}");
    Ok(())
}

/// What specs of one's own are for is in the build, or the build says that it is not.
#[test]
fn specs_of_ones_own_are_not_dropped_in_silence() -> Result {
    let import = "doc = \"x\"\nformat = \"i2_s\"\nrows = 4\n[[field]]\nname = \"code\"\n\
                  layout = { axes = [\"k\", \"row\"], shape = [128, 4], stride = [8, -2], offset = 6 }\n";
    let coverage = "[[require]]\nop = \"matmul\"\nformats = [\"q4_0\"]\nisa = [\"scalar\"]\n";
    let kernel = "doc = \"x\"\nop = \"matmul\"\nformats = [\"q4_0\"]\ninput = [\"f32\"]\noutput = \"f32\"\n[[cpu]]\n\
                  isa = \"avx2\"\nrequires = [\"ssse3\"]\nname = \"mine\"\npacking = \"r16k4\"\ntile = { rows = 8, tokens = 1 }\n\
                  shape = { m = { max = 2 } }\n";
    let root = folder(&[OWN, ("imports/mine.toml", import)])?;
    assert_eq!(built(&Builder::new("specs"), root.path())?.0, ["i2_s", "own", "mine"]);

    let root = folder(&[OWN, ("coverage.toml", coverage)])?;
    let own = Builder::new("specs");
    let text = refused(&own, root.path());
    assert!(
        text.starts_with("specs/coverage.toml requires kernels of `q4_0`, which this build leaves out"),
        "{text}"
    );
    assert_eq!(built(&own.clone().with_shipped(["q4_0"]), root.path())?.0, ["own", "q4_0"]);

    let root = folder(&[OWN, ("kernels/mine.toml", kernel)])?;
    let (_, warnings) = built(&own, root.path())?;
    assert!(
        matches!(&warnings[..], [one] if one.starts_with("specs/kernels/mine.toml: no format")),
        "{warnings:?}"
    );
    assert_eq!(built(&own.with_shipped(["q4_0"]), root.path())?.1, [""; 0]);
    Ok(())
}

/// Files and folders that nobody would read are errors with what would help.
#[test]
fn files_that_nobody_would_read_are_refused() -> Result {
    let cases: [(&str, &str); 2] = [
        ("format/x.toml", "is it meant to be called `formats`?"),
        ("formats/sub/x.toml", "directly in the folder"),
    ];
    for (path, wanted) in cases {
        let root = folder(&[OWN, (path, "")])?;
        let text = refused(&Builder::new("specs"), root.path());
        assert!(text.contains(wanted), "{text}");
    }
    let root = folder(&[OWN, ("notes/x.toml", "anything")])?;
    assert_eq!(built(&Builder::new("specs"), root.path())?.0, ["own"]);
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink("nowhere.toml", root.path().join("specs/formats/link.toml"))?;
        let text = refused(&Builder::new("specs"), root.path());
        assert!(text.contains("link.toml"), "{text}");
    }
    Ok(())
}
