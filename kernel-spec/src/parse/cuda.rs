//! `cuda.toml`: the architectures that CUDA kernels are compiled for.

use crate::model::CudaTargets;
use crate::toml_walk::{At, File, Span, Table};
use crate::vocab::CudaArch;
use toml::de::DeTable;

/// Reads the file; `None` after its mistakes are reported.
pub(crate) fn parse(file: &File<'_>, table: &DeTable<'_>) -> Option<CudaTargets> {
    let table =
        Table::open(file, "CUDA targets", table, Span::default(), &["architectures", "specific", "ptx"]);
    let mut architectures = table.need("architectures")?.list(|node| architecture(file, &node.string()?))?;
    let list = |key| match table.get(key) {
        None => Some(Vec::new()),
        Some(node) => node.strings()?.iter().map(|text| architecture(file, text)).collect::<Option<Vec<_>>>(),
    };
    let (mut specific, mut ptx) = (list("specific")?, list("ptx")?);
    if let Some(plain) = specific.iter().find(|arch| !arch.specific) {
        let node = table.get("specific")?;
        let message = format!("no kernel is for {plain} alone");
        let error = file.error("out-of-range", node.span, message);
        file.report(error.help(format!("write `{plain}a`, or list it under `architectures`")));
        return None;
    }
    if let Some(specific) = ptx.iter().find(|arch| arch.specific) {
        let node = table.get("ptx")?;
        let message = format!("PTX for {specific} runs on no other device");
        let error = file.error("out-of-range", node.span, message);
        file.report(
            error.help("name an architecture without `a`: newer devices compile its PTX for themselves"),
        );
        return None;
    }
    architectures.sort_unstable();
    architectures.dedup();
    for archs in [&mut specific, &mut ptx] {
        archs.sort_unstable();
        archs.dedup();
    }
    Some(CudaTargets { architectures, specific, ptx })
}

fn architecture(file: &File<'_>, text: &At<String>) -> Option<CudaArch> {
    let arch = CudaArch::from_name(&text.value);
    if arch.is_none() {
        let message = format!("`{}` is no CUDA architecture", text.value.escape_debug());
        let error = file.error("out-of-range", text.span, message);
        file.report(error.help("write it like \"80\" or \"90a\": the compute capability without its point"));
    }
    arch
}
