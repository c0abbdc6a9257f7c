//! The proofs: sums that a plan calls exact are exact at the extremes, and no further than it says.

use gristmill_codegen::plan::{
    Dot, FormatPlan, LookupPlan, MatmulPlan, PackPlan, Scaled, TileOperands, scalar_k_max,
};
use gristmill_spec::model::{CpuVariant, FieldType, Format, SpecSet, TileCode, Value};
use gristmill_spec::vocab::{Feature, Isa, Op, Strategy};
use gristmill_spec::{check, shipped};
use std::collections::BTreeMap;

fn set() -> SpecSet {
    check(&shipped().expect("readable")).set.expect("the shipped specs have no mistakes")
}

/// The shipped format of this name.
fn shipped_format<'s>(set: &'s SpecSet, name: &str) -> &'s Format {
    set.formats.iter().find(|format| format.name == name).expect("shipped")
}

/// The first shipped variant that is so.
fn variant(set: &SpecSet, is: impl Fn(&CpuVariant) -> bool) -> &CpuVariant {
    set.kernels.iter().flat_map(|kernel| &kernel.cpu).find(|variant| is(variant)).expect("shipped")
}

/// Every packed variant of every shipped format, planned.
fn each(mut f: impl FnMut(&MatmulPlan<'_>, Isa)) {
    let set = set();
    let matmul = set.kernels.iter().find(|k| k.op == Op::Matmul).expect("shipped");
    let mut count = 0;
    for format in &set.formats {
        let plan = FormatPlan::new(format, &set.activations[format.activations]);
        let multiplies = |v: &&CpuVariant| v.packing.is_some() && v.strategy == Strategy::Multiply;
        let index = set.formats.iter().position(|other| other.name == format.name).expect("of the set");
        for variant in matmul.cpu.iter().filter(multiplies).filter(|v| v.formats.contains(&index)) {
            let packing = &set.packings[variant.packing.expect("filtered")];
            f(&MatmulPlan::new(&plan, packing, variant).expect("plans"), variant.isa);
            count += 1;
        }
    }
    assert!(count > 100, "{count}");
}

/// i16 sums at their worst: every operand at its largest, every activation at an end of its range.
#[test]
fn pairs_never_leave_sixteen_bits() {
    let mut seen = 0;
    each(|plan, _| {
        let tiles = match plan.dot {
            Dot::Pairs { tiles } => i64::from(tiles),
            Dot::PairsWithin { fields } => i64::from(fields),
            Dot::Direct { .. } | Dot::Wide | Dot::Split => return,
        };
        seen += 1;
        let whole_tiles = matches!(plan.dot, Dot::Pairs { .. });
        let adds = if whole_tiles { tiles * i64::from(plan.pack.fields * plan.pack.words) } else { tiles };
        let operands = match (plan.biased, plan.signs) {
            (true, _) => [-128, 127],
            (_, true) => [i64::from(plan.format.min()), i64::from(plan.format.max())],
            _ => [0, i64::from(plan.pack.operand_max)],
        };
        for (x, operand) in [-128i64, 127].into_iter().flat_map(|x| operands.map(|operand| (x, operand))) {
            let mut sum = 0i64;
            for _ in 0..adds {
                sum += i64::from(plan.primitives.paired) * operand * x;
                assert!(i64::from(i16::MIN) <= sum && sum <= i64::from(i16::MAX), "{}", plan.describe());
            }
        }
    });
    assert!(seen > 20, "{seen}");
}

/// Operands that don't fit a pairwise multiply are widened; those that do are not.
#[test]
fn wide_operands_are_widened_only_where_needed() {
    each(|plan, isa| {
        let fits = 2 * i64::from(plan.pack.operand_max) * 128 <= 1 << 15;
        assert_eq!(plan.biased, plan.primitives.signed && plan.pack.operand_max > 127, "{}", plan.describe());
        match (isa, plan.dot) {
            (Isa::Neon, Dot::Direct { .. }) if plan.primitives.direct => {}
            (Isa::Neon, Dot::Pairs { .. } | Dot::PairsWithin { .. }) if !plan.primitives.direct => {}
            (_, Dot::Wide) => assert!(!fits, "{}", plan.describe()),
            (Isa::Avx2, Dot::PairsWithin { fields: 1 }) if plan.signs => {
                assert!(
                    !fits && plan.format.min() >= -127 && plan.format.max() <= 127,
                    "{}",
                    plan.describe()
                );
            }
            (Isa::Avx2, Dot::Split) => {
                assert!(!fits && plan.tokens == 1, "{}", plan.describe());
                // Halves of activations are from -8 to 8.
                let of_a_run = 2 * 8 * i64::from(plan.pack.operand_max) * i64::from(plan.format.k_group / 4);
                assert!(of_a_run < 1 << 15, "{}", plan.describe());
            }
            (_, Dot::Pairs { .. } | Dot::PairsWithin { .. }) => assert!(fits, "{}", plan.describe()),
            (Isa::AvxVnni | Isa::Avx512, Dot::Direct { .. }) => {}
            (isa, dot) => panic!("{isa} has no {dot:?}"),
        }
    });
}

/// Where tokens go in pairs, runs are whole steps of eight or sixteen k (more only in one tile), and tiles take even
/// numbers of tokens. Short runs of wide codes would spend more on bringing rows and tokens together than they save.
#[test]
fn tokens_in_pairs_fill_their_instruction() {
    let mut paired = BTreeMap::new();
    each(|plan, isa| {
        if !plan.primitives.matrix || plan.tokens == 1 {
            assert!(!plan.pairs, "{}", plan.describe());
            return;
        }
        paired.insert(plan.format.format.name.clone(), plan.pairs);
        let (tiles, k) = (plan.step, plan.pack.tile.k);
        if plan.format.k_group == 0 {
            assert_eq!(tiles, 1, "how many tiles a whole row has is not known");
        } else {
            assert!(plan.format.k_group.div_ceil(k).is_multiple_of(tiles), "{}", plan.describe());
        }
        if plan.pairs {
            assert_eq!(isa, Isa::Neon);
            assert!(plan.tokens.is_multiple_of(2), "{}", plan.describe());
            assert!(matches!(tiles * k, 8 | 16) || (tiles == 1 && k == 32), "{tiles} tiles of {k}");
        }
    });
    for (format, expected) in
        [("i2_s", true), ("tq2_0", true), ("q4_0", true), ("q8_0", false), ("q6_k", false)]
    {
        assert_eq!(paired.get(format), Some(&expected), "{format}");
    }
}

/// Tiles keep to the registers where those are counted, and are no smaller than they must be.
#[test]
fn sums_fit_the_registers() {
    let mut halved = 0;
    let set = set();
    let matmul = set.kernels.iter().find(|k| k.op == Op::Matmul).expect("shipped");
    for variant in matmul.cpu.iter().filter(|v| v.isa == Isa::Neon && v.strategy == Strategy::Multiply) {
        for format in &set.formats {
            let format = FormatPlan::new(format, &set.activations[format.activations]);
            let packing = &set.packings[variant.packing.expect("packed")];
            let plan = MatmulPlan::new(&format, packing, variant).expect("plans");
            let listed = variant.rows / plan.primitives.lanes * variant.tokens;
            // Whatever else is kept: one integer sum, and an f32 sum where units are scaled one by one.
            let least = if format.k_group == 0 { 1 } else { 2 };
            assert!(plan.vectors * plan.tokens * least <= 20, "{}", plan.describe());
            assert!(plan.vectors * plan.tokens * 4 >= listed, "{}", plan.describe());
            halved += usize::from(plan.vectors * plan.tokens < listed);
        }
    }
    assert!(halved > 0, "no tile had too many sums: the shipped ones could be larger");
}

/// i32 sums over whole rows at their worst, shift-free fields at their place in the byte.
#[test]
fn whole_rows_stay_within_thirty_two_bits() {
    let mut seen = 0;
    each(|plan, _| {
        if plan.format.k_group != 0 {
            return;
        }
        seen += 1;
        let (operand, fields) = (u64::from(plan.pack.operand_max), u64::from(plan.pack.fields));
        let k = plan.k_max.next_multiple_of(u64::from(plan.pack.tile.k));
        let in_place = match plan.dot {
            // Bits fill the byte; five trits come in two bytes of fields of two bits.
            Dot::Direct { shift_free: true } if plan.pack.trits() => operand << 6,
            Dot::Direct { shift_free: true } => operand << (u64::from(plan.pack.bits()) * (fields - 1)),
            _ => operand * fields,
        };
        assert!(in_place * 128 * (k / fields) <= 1 << 31, "{}", plan.describe());
        assert!(operand * 128 * k <= 1 << 31, "{}", plan.describe());
        assert!(plan.k_max >= 131_072 || operand > 120, "{}: k is bounded without need", plan.describe());
    });
    assert!(seen > 10, "{seen}");
}

#[test]
fn the_reference_is_exact_where_it_says() {
    let set = set();
    for format in &set.formats {
        let plan = FormatPlan::new(format, &set.activations[format.activations]);
        if plan.k_group == 0 {
            let worst = u64::from(plan.min().unsigned_abs().max(plan.max().unsigned_abs()));
            assert!(worst * 128 * scalar_k_max(&plan) < 1 << 31);
            assert!(scalar_k_max(&plan) >= 131_072, "{}", format.name);
        }
    }
}

/// Which formats have runs with integers, and how many of them are summed before anything is rounded.
#[test]
fn integers_of_runs_are_found() {
    let set = set();
    let runs = |name: &str| {
        let format = shipped_format(&set, name);
        let plan = FormatPlan::new(format, &set.activations[format.activations]);
        (plan.runs(), plan.k_group)
    };
    for name in ["q4_k", "q5_k", "iq4_xs", "iq3_s", "iq3_xxs", "iq2_xxs", "iq1_s"] {
        assert_eq!(runs(name), (8, 32), "{name}");
    }
    for name in ["q2_k", "q3_k", "q6_k", "iq2_s", "iq2_xs", "iq1_m"] {
        assert_eq!(runs(name), (16, 16), "{name}");
    }
    // One number for each run, for a block or for a row.
    for (name, unit) in [("q4_0", 32), ("q8_0", 32), ("nvfp4", 16), ("tq2_0", 256), ("i2_s", 0)] {
        assert_eq!(runs(name), (1, unit), "{name}");
    }
}

/// Sums of super-blocks at their worst: all weights, integers and activations as far from zero as they go.
#[test]
fn superblocks_stay_within_thirty_two_bits() {
    let set = set();
    let mut seen = 0;
    for format in &set.formats {
        let plan = FormatPlan::new(format, &set.activations[format.activations]);
        let Some(superblock) = &plan.superblock else { continue };
        seen += 1;
        let elements = i64::from(superblock.runs * plan.k_group);
        let largest = |field: usize| {
            let field = &format.fields[field];
            let numbers = match field.ty {
                FieldType::Unsigned(bits) => [0, (1 << bits) - 1],
                FieldType::Signed(bits) => [-(1 << (bits - 1)), (1 << (bits - 1)) - 1],
                FieldType::Digit(_) | FieldType::Scalar(_) => panic!("{}: no integer", format.name),
            };
            numbers
                .map(|raw: i64| (i64::from(field.times) * raw + i64::from(field.plus)).abs())
                .into_iter()
                .max()
        };
        let weight = i64::from(plan.max().abs().max(plan.min().abs()));
        let scale = largest(superblock.scale.integer).expect("two");
        assert!(scale <= 128 && elements * 128 * weight * scale < 1 << 31, "{}", format.name);
        if let Some(min) = &superblock.min {
            assert!(largest(min.integer).expect("two") * elements * 128 < 1 << 31, "{}", format.name);
            assert!(i64::from(plan.k_group) * 128 < 1 << 15, "{}: sums go through sixteen bits", format.name);
        }
    }
    assert!(seen >= 12, "{seen}");
}

/// Where an integer takes more than a byte, a sum could leave 32 bits, or runs don't come in pairs, each run keeps an f32.
#[test]
fn superblocks_are_refused_where_they_would_not_be_exact() {
    let set = set();
    let row = &set.activations[set.activations.iter().position(|a| a.block.is_none()).expect("int8_row")];
    let of = |name: &str, change: &dyn Fn(&mut Format)| {
        let mut format = shipped_format(&set, name).clone();
        change(&mut format);
        FormatPlan::new(&format, row).superblock.map(|superblock| superblock.runs)
    };
    let field = |format: &Format, name: &str| {
        format.fields.iter().position(|field| field.name == name).expect("it has one")
    };
    // A block so many times as long, with as many more runs.
    let longer = |times: u32| {
        move |format: &mut Format| {
            let scale = field(format, "scale");
            format.fields[scale].count *= times;
            format.elements *= times;
        }
    };
    assert_eq!(of("q6_k", &|_| {}), Some(16));
    assert_eq!(of("q6_k", &longer(8)), Some(128));
    assert_eq!(of("q6_k", &longer(16)), None, "128 * 4096 * 32 * 128 = 2^31");
    let wider = |name: &'static str| {
        move |format: &mut Format| {
            let index = field(format, name);
            format.fields[index].times = 3;
        }
    };
    assert_eq!(of("q4_k", &wider("scale")), None, "up to 189");
    assert_eq!(of("q4_k", &wider("min")), None, "up to 189");
    assert_eq!(
        of("q4_k", &|format| format.value.scale.reverse()),
        None,
        "the products would round elsewhere"
    );
    assert_eq!(of("q4_k", &|format| format.value.subtract.truncate(1)), None, "the minimum has no integer");
    let one_run = |format: &mut Format| {
        let scale = field(format, "scale");
        format.fields[scale].count = 1;
    };
    assert_eq!(of("q6_k", &one_run), None);
}

/// Counts of factors need not divide each other: sums are over what is cut by none of them.
#[test]
fn runs_are_what_all_factors_share() {
    let set = set();
    let row = &set.activations[set.activations.iter().position(|a| a.block.is_none()).expect("int8_row")];
    let q4_k = shipped_format(&set, "q4_k");
    for (elements, scales, mins, run) in
        [(48, 2, 3, 8), (60, 4, 6, 5), (60, 5, 1, 12), (30, 15, 10, 1), (64, 8, 4, 8), (48, 3, 2, 8)]
    {
        let mut format = q4_k.clone();
        format.elements = elements;
        for (name, count) in [("scale", scales), ("min", mins)] {
            let field = format.fields.iter_mut().find(|field| field.name == name).expect("it has one");
            field.count = count;
        }
        let plan = FormatPlan::new(&format, row);
        assert_eq!((plan.run(), plan.k_group), (run, run), "{elements} by {scales} and {mins}");
        assert_eq!(plan.groups * run, elements);
    }
}

/// Codes of a packing, all at different bits of a tile and all within it.
#[test]
fn packed_codes_do_not_overlap() {
    let set = set();
    for format in &set.formats {
        let plan = FormatPlan::new(format, &set.activations[format.activations]);
        for packing in &set.packings {
            let Some(pack) = PackPlan::fit(&plan, packing) else { continue };
            let places = if pack.trits() { 5 } else { 8 };
            let mut taken = vec![false; pack.tile.bytes as usize * places];
            for row in 0..packing.rows {
                for k in 0..pack.tile.k {
                    let bit = pack.bit(row, k) as usize;
                    let places = match pack.trits() {
                        true => {
                            bit / 8 * 5 + pack.trit(row, k) as usize
                                ..=bit / 8 * 5 + pack.trit(row, k) as usize
                        }
                        false => bit..=bit + pack.bits() as usize - 1,
                    };
                    for at in places {
                        assert!(!std::mem::replace(&mut taken[at], true), "{}: {at} twice", packing.name);
                    }
                }
            }
            assert!(taken.into_iter().all(|t| t), "{}: a tile has holes", packing.name);
        }
    }
}

/// Codes take as few bits as hold them, in planes where no field of a byte has as many, and the bits of both planes of all
/// codes of a tile lie apart.
#[test]
fn codes_lie_in_planes_of_the_fewest_bits() {
    let set = set();
    let matmul = set.kernels.iter().find(|k| k.op == Op::Matmul).expect("shipped");
    let mut widths = BTreeMap::new();
    for format in &set.formats {
        let plan = FormatPlan::new(format, &set.activations[format.activations]);
        for variant in matmul.cpu.iter().filter(|v| v.strategy == Strategy::Multiply) {
            let Some(packing) = variant.packing.map(|index| &set.packings[index]) else { continue };
            let Ok(pack) = PackPlan::new(&plan, packing, variant.strategy, &variant.origin) else { continue };
            if pack.trits() {
                continue;
            }
            let key = (packing.name.as_str(), format.name.as_str());
            widths.insert(key, (pack.field_bits(), pack.upper.map_or(0, |upper| upper.bits)));
            let widest = pack.operand_max >> pack.spacing;
            assert!(pack.table.is_some() || widest < 1 << pack.bits(), "{} of {}", packing.name, format.name);
            let mut taken = vec![false; pack.tile.bytes as usize * 8];
            for (row, k) in (0..packing.rows).flat_map(|row| (0..pack.tile.k).map(move |k| (row, k))) {
                let lower = pack.bit(row, k)..pack.bit(row, k) + pack.field_bits();
                let upper = pack.upper.map_or(0..0, |upper| {
                    let first = pack.upper_bit(row, k).expect("there is a plane");
                    first..first + upper.bits
                });
                for at in lower.chain(upper) {
                    let before = std::mem::replace(&mut taken[at as usize], true);
                    assert!(!before, "{} of {}: bit {at} twice", packing.name, format.name);
                }
            }
            assert!(taken.into_iter().all(|taken| taken), "{}: a tile has holes", packing.name);
        }
    }
    for (format, r16k4, r32k4) in [
        // Two values, two apart.
        ("q1_0", (2, 0), (1, 0)),
        ("q2_0", (2, 0), (2, 0)),
        ("q3_k", (4, 0), (2, 1)),
        // Ternary, with a shift that flags say.
        ("iq1_s", (2, 0), (2, 0)),
        ("iq1_m", (2, 0), (2, 0)),
        ("iq2_xxs", (4, 0), (2, 1)),
        ("iq3_s", (4, 0), (4, 0)),
        ("q4_0", (4, 0), (4, 0)),
        ("q5_0", (4, 1), (4, 1)),
        ("q5_k", (4, 1), (4, 1)),
        ("q6_k", (4, 2), (4, 2)),
        ("q8_0", (8, 0), (8, 0)),
    ] {
        assert_eq!(widths.get(&("r16k4", format)), Some(&r16k4), "{format}");
        assert_eq!(widths.get(&("r32k4", format)), Some(&r32k4), "{format}");
    }
}

/// Kernels of processors and of GPUs may share what packs a format: what has one name packs in one way.
#[test]
fn packings_of_one_name_are_the_same() {
    let set = set();
    let matmul = set.kernels.iter().find(|k| k.op == Op::Matmul).expect("shipped");
    let mut seen: BTreeMap<String, String> = BTreeMap::new();
    let mut twice = 0;
    for format in &set.formats {
        let plan = FormatPlan::new(format, &set.activations[format.activations]);
        let cpu = matmul.cpu.iter().filter_map(|variant| {
            let packing = &set.packings[variant.packing?];
            PackPlan::new(&plan, packing, variant.strategy, &variant.origin).ok()
        });
        let gpu = set.packings.iter().filter_map(|packing| PackPlan::fit(&plan, packing));
        for pack in cpu.chain(gpu) {
            let PackPlan { tile, table, spacing, upper, shifted, terms, .. } = &pack;
            let packs = format!("{:?} {table:?} {spacing} {upper:?} {shifted:?} {terms:?}", tile.code);
            let name = format!("{} {}", format.name, pack.ident());
            let before = seen.entry(name.clone()).or_insert_with(|| packs.clone());
            assert_eq!(*before, packs, "{name}");
            twice += 1;
        }
    }
    assert!(twice > seen.len(), "none is shared");
}

/// Sums of a lookup at their worst, added as the generated loops add them: in bytes, in i16 and in i32.
#[test]
fn sums_of_digits_never_leave_their_lanes() {
    let set = set();
    let lookups: Vec<&CpuVariant> =
        set.kernels.iter().flat_map(|k| &k.cpu).filter(|v| v.strategy == Strategy::Lookup).collect();
    assert!(lookups.len() >= 4, "{}", lookups.len());
    let (mut planned, mut refused) = (0, Vec::new());
    for format in &set.formats {
        let plan = FormatPlan::new(format, &set.activations[format.activations]);
        for variant in &lookups {
            let packing = &set.packings[variant.packing.expect("a lookup reads packed codes")];
            let widest = packing.tiles.iter().map(|tile| tile.code.levels()).max().expect("a tile");
            if plan.values.len() > widest as usize {
                continue;
            }
            match LookupPlan::new(&plan, packing, variant) {
                Ok(lookup) => worst_sums(&lookup),
                Err(_) => refused.push(format.name.as_str()),
            }
            planned += 1;
        }
    }
    refused.dedup();
    // Few values, but they span more than 32: their sums have no two digits that bytes could add.
    let too_wide = ["iq2_s", "iq2_xs", "iq2_xxs", "iq3_xxs", "iq4_nl", "iq4_xs"];
    assert_eq!(refused, too_wide, "of {planned}");
}

fn worst_sums(plan: &LookupPlan<'_>) {
    let (step, bias, split) = (i64::from(plan.step), i64::from(plan.bias), plan.split);
    let largest = i64::from(*plan.operands.iter().max().expect("operands"));
    let codes = i64::from(plan.codes);
    // What bytes gain with each lookup, in the sums where it is most.
    let biased: Vec<i64> = [-128, 127].map(|x| codes * largest * x + bias).to_vec();
    assert!(biased[0] >= 0, "{}", plan.describe());
    let low = (0..=biased[1]).map(|sum| sum & ((1 << split) - 1)).max().expect("sums");
    let lookups = 2 * i64::from(plan.block);
    assert!(low * lookups <= 255 && (biased[1] >> split) * lookups <= 255, "{}", plan.describe());
    let merged = biased[1] * step * lookups;
    assert!(merged <= i64::from(i16::MAX), "{}", plan.describe());
    match plan.blocks_in_i16 {
        Some(blocks) => assert!(merged * i64::from(blocks) <= i64::from(i16::MAX), "{}", plan.describe()),
        None => {
            let weight = i64::from(plan.format.min().abs().max(plan.format.max().abs()));
            assert!(
                weight * 128 * i64::from(plan.format.k_group) <= i64::from(i16::MAX),
                "{}",
                plan.describe()
            );
        }
    }
    if plan.format.k_group == 0 {
        let per_code = 2 * bias * step / codes + 128 * i64::from(plan.format.min().abs());
        let k = plan.k_max as i64 + i64::from(plan.pack.multiple);
        assert!(per_code * k <= i64::from(i32::MAX), "{}", plan.describe());
    }
}

/// Trits are taken apart by byte permutes: without them there is no kernel, and that is an error of the spec.
#[test]
fn trits_are_for_processors_that_take_them_apart() {
    let set = set();
    let format = shipped_format(&set, "i2_s");
    let plan = FormatPlan::new(format, &set.activations[format.activations]);
    let packing = set.packings.iter().find(|packing| packing.name == "r32t5").expect("shipped");
    let dense = variant(&set, |v| v.label == "dense_decode");
    let resolved = MatmulPlan::new(&plan, packing, dense).expect("plans");
    assert!(resolved.describe().contains("trits, five to a byte; decode: byte permutes and mask"));
    for without in &dense.requires {
        let mut older = dense.clone();
        older.requires.retain(|feature| feature != without);
        let error =
            MatmulPlan::new(&plan, packing, &older).expect_err("nothing takes them apart").to_string();
        assert!(error.contains("`r32t5` holds trits"), "{error}");
    }
    // Four values need two bits.
    let wide = shipped_format(&set, "tq2_0");
    let plan = FormatPlan::new(wide, &set.activations[wide.activations]);
    assert!(PackPlan::fit(&plan, packing).is_none());
}

/// A packing whose name looks like what another is told apart by has a pack function of its own.
#[test]
fn names_of_packings_are_no_words_of_others() {
    let set = set();
    let format = shipped_format(&set, "q5_0");
    let plan = FormatPlan::new(format, &set.activations[format.activations]);
    let shipped = set.packings.iter().find(|packing| packing.name == "r16k4").expect("shipped");
    let mut bytes = shipped.clone();
    bytes.name = "r16k4_planes".into();
    bytes.tiles.retain(|tile| tile.code == TileCode::Bits(8));
    let ident = |packing| {
        PackPlan::new(&plan, packing, Strategy::Multiply, &format.origin).expect("it has a tile").ident()
    };
    assert_eq!(ident(shipped), "r16k4_planes_f16");
    assert_eq!(ident(&bytes), "r16k4__planes_f16");
}

/// What `look` says of the plan of a format for a variant.
fn planned<T>(
    set: &SpecSet,
    format: &Format,
    variant: &CpuVariant,
    look: impl FnOnce(&MatmulPlan<'_>) -> T,
) -> T {
    let plan = FormatPlan::new(format, &set.activations[format.activations]);
    let packing = &set.packings[variant.packing.expect("it has one")];
    look(&MatmulPlan::new(&plan, packing, variant).expect("plans"))
}

/// A buffer of operands is for codes that are dear to decode.
#[test]
fn operands_are_staged_where_that_saves_something() {
    let set = set();
    let staged = |format: &str, label: &str| {
        let variant = variant(&set, |v| v.label == label);
        planned(&set, shipped_format(&set, format), variant, |resolved| {
            let words = resolved.describe();
            assert_eq!(resolved.staged.is_some(), words.contains("once for all tokens by"), "{words}");
            resolved.staged.as_ref().map(|staged| (staged.step, staged.steps, staged.scaled))
        })
    };
    // Super-blocks of 256, runs of 32, five trits to four bytes of a row.
    assert_eq!(staged("q6_k", "batch"), Some((256, 2, None)));
    assert_eq!(staged("q5_0", "batch"), Some((32, 16, None)));
    assert_eq!(staged("i2_s", "dense_batch"), Some((20, 25, None)));
    // The first of these is AVX2's, where operands above 127 are widened.
    for wide in ["iq4_nl", "q8_0"] {
        assert_eq!(staged(wide, "batch"), Some((32, 8, Some(Scaled::Words))), "{wide}");
    }
    assert_eq!(staged("mxfp4", "batch"), None);
    // AVX2 stages codes that take a shift and a mask too; AVX-512 leaves them.
    assert_eq!(staged("i2_s", "batch"), Some((16, 32, None)));
    let of_avx512 = variant(&set, |v| v.isa == Isa::Avx512 && v.requires.is_empty() && v.label == "batch");
    for plain in ["i2_s", "q4_k", "q8_0", "mxfp4", "iq1_s"] {
        planned(&set, shipped_format(&set, plain), of_avx512, |resolved| {
            assert!(resolved.staged.is_none(), "{plain}");
        });
    }
}

/// Integers of runs wait with operands on AVX2, of which half waits where all are even and sums in i16 are too small for a run otherwise.
#[test]
fn integers_of_runs_wait_with_operands() {
    let set = set();
    let batch = variant(&set, |v| v.isa == Isa::Avx2 && v.label == "batch");
    let of = |format| {
        planned(&set, shipped_format(&set, format), batch, |resolved| {
            let staged = resolved.staged.as_ref().expect("it is staged");
            (staged.integers, staged.halved, resolved.dot)
        })
    };
    assert_eq!(of("i2_s"), (false, false, Dot::Pairs { tiles: 16 }));
    // A tile is a run.
    assert_eq!(of("q4_k"), (true, false, Dot::Pairs { tiles: 1 }));
    assert_eq!(of("iq1_s"), (true, true, Dot::Pairs { tiles: 1 }));
    assert_eq!(of("iq3_s"), (true, true, Dot::Pairs { tiles: 1 }));
    assert_eq!(of("iq3_xxs"), (true, true, Dot::PairsWithin { fields: 2 }));
    // Runs of sixteen fit as they are, and some values of `iq2_xs` are odd.
    assert_eq!(of("iq1_m"), (true, false, Dot::Pairs { tiles: 1 }));
    assert_eq!(of("iq2_xs"), (true, false, Dot::PairsWithin { fields: 1 }));
}

/// Zero points and minima take the sums of activations of two runs as i16, which hold those of 256 elements at -128: longer runs are
/// multiplied in i32, and with a minimum they are no super-block.
#[test]
fn sums_of_activations_of_long_runs_are_not_cut_to_sixteen_bits() {
    let set = set();
    let int8_row =
        set.activations.iter().find(|activations| activations.name == "int8_row").expect("shipped");
    let of_avx2 = |label: &str| variant(&set, |v| v.isa == Isa::Avx2 && v.label == label);
    // Two runs of so many elements.
    let format = |name: &str, run: u32| {
        let mut format = Format { elements: 2 * run, ..shipped_format(&set, name).clone() };
        for field in format.fields.iter_mut().filter(|field| field.count == 16) {
            field.count = 2;
        }
        format
    };
    for (run, fits) in [(256, true), (512, false)] {
        let q3_k = format("q3_k", run);
        let plan = FormatPlan::new(&q3_k, int8_row);
        assert_eq!(plan.superblock.as_ref().map(|superblock| superblock.runs), Some(2));
        for label in ["prefill", "batch"] {
            let variant = of_avx2(label);
            let packing = &set.packings[variant.packing.expect("it has one")];
            let resolved = MatmulPlan::new(&plan, packing, variant).expect("plans");
            assert_eq!(resolved.widens_by_integers(), fits, "{label} of runs of {run}");
            let waiting = resolved.staged.is_some_and(|staged| staged.integers);
            assert_eq!(waiting, fits && label == "batch", "{label} of runs of {run}");
        }
        // From 0 on there is nothing to correct.
        let q2_k = Format {
            value: Value { subtract: Vec::new(), ..format("q2_k", run).value },
            ..format("q2_k", run)
        };
        let plan = FormatPlan::new(&q2_k, int8_row);
        assert_eq!(plan.min(), 0);
        let prefill = of_avx2("prefill");
        let packing = &set.packings[prefill.packing.expect("it has one")];
        assert!(MatmulPlan::new(&plan, packing, prefill).expect("plans").widens_by_integers(), "{run}");
        assert_eq!(FormatPlan::new(&format("q2_k", run), int8_row).superblock.is_some(), fits, "{run}");
    }
}

/// Activations are widened once for all rows where a run holds whole vectors of them; a row of any length does not.
#[test]
fn activations_are_widened_once_a_run_where_operands_are_widened() {
    let set = set();
    let decode =
        |isa: Isa| variant(&set, |v| v.isa == isa && v.strategy == Strategy::Multiply && v.packing.is_some());
    let words_of = |isa, format| {
        planned(&set, format, decode(isa), |resolved| (resolved.dot == Dot::Wide, resolved.widens_runs()))
    };
    let words = |isa, format| words_of(isa, shipped_format(&set, format));
    for isa in [Isa::Sse41, Isa::Avx512] {
        for format in ["q8_0", "iq4_nl", "iq4_xs"] {
            assert_eq!(words(isa, format), (true, true), "{isa} {format}");
        }
        assert_eq!(words(isa, "q4_0"), (false, false), "{isa}");
    }
    // Runs of sixteen.
    let sixteen = Format { elements: 16, ..shipped_format(&set, "q8_0").clone() };
    assert_eq!(words_of(Isa::Avx2, &sixteen), (true, false));
}

/// A token by itself is split where a run of it is a vector, and several are not.
#[test]
fn activations_of_one_token_are_split_where_operands_would_be_widened() {
    let set = set();
    let dot = |format: &Format, label: &str| {
        let of_avx2 = variant(&set, |v| v.isa == Isa::Avx2 && v.label == label);
        planned(&set, format, of_avx2, |resolved| resolved.dot)
    };
    for format in ["q8_0", "iq4_nl", "iq4_xs"] {
        let format = shipped_format(&set, format);
        assert_eq!(dot(format, "decode"), Dot::Split, "{}", format.name);
        // Several tokens: values of a table are multiplied with their signs; what is no table stays from 0 to 255.
        let several = if format.name == "q8_0" { Dot::Wide } else { Dot::PairsWithin { fields: 1 } };
        assert_eq!(dot(format, "prefill"), several, "{}", format.name);
    }
    assert!(matches!(dot(shipped_format(&set, "q4_0"), "decode"), Dot::Pairs { .. }));
    let short = Format { elements: 16, ..shipped_format(&set, "q8_0").clone() };
    assert_eq!(dot(&short, "decode"), Dot::Wide, "a run of 16 is half a vector of activations");
}

/// Values times integers of runs wait in the buffer where they fit a byte and products of any bytes are summed in i32: then each sum is
/// scaled once a super-block. 3 * 15 is the most of `q2_k`; -4 * -32 and -4 * 31 are both ends of `q3_k`.
/// Those of `iq1_s` and `iq1_m` are odd, from -9 * 15 to 9 * 15, so that halves of their distances fit.
#[test]
fn operands_are_products_with_integers_where_those_fit_a_byte() {
    let set = set();
    let batch = |isa: Isa, vnni: bool| {
        variant(&set, |v| {
            (v.label.as_str(), v.isa, v.requires.contains(&Feature::Avx512vnni)) == ("batch", isa, vnni)
        })
    };
    let staged = |variant: &CpuVariant, format: &str| {
        planned(&set, shipped_format(&set, format), variant, |resolved| {
            resolved.staged.as_ref().map(|staged| staged.scaled)
        })
    };
    let vnni = batch(Isa::Avx512, true);
    let avxvnni = variant(&set, |v| (v.label.as_str(), v.isa) == ("batch", Isa::AvxVnni));
    let of_odd_numbers = [("iq1_s", -135, true), ("iq1_m", -135, true)];
    for (format, zero, halved) in
        [("q2_k", 0, false), ("q3_k", -124, false)].into_iter().chain(of_odd_numbers)
    {
        for (variant, at_once) in [(vnni, 8), (avxvnni, 5)] {
            assert_eq!(staged(variant, format), Some(Some(Scaled::Bytes { zero, halved })), "{format}");
            let tokens = planned(&set, shipped_format(&set, format), variant, |resolved| resolved.tokens);
            assert_eq!(tokens, at_once, "{format}");
        }
    }
    assert_eq!(staged(vnni, "q4_k"), None);
    assert_eq!(staged(vnni, "q6_k"), Some(None));
    let without = batch(Isa::Avx512, false);
    assert_eq!(staged(without, "q2_k"), None);
    assert_eq!(staged(without, "q3_k"), Some(None));

    // As i16 where operands become that in any case: -127 * 32 is their least. Values alone on AVX2: runs of these have no integers.
    let avx2 = batch(Isa::Avx2, false);
    for (format, of_avx512) in [("iq4_xs", Some(Some(Scaled::Words))), ("iq4_nl", Some(None)), ("q8_0", None)]
    {
        assert_eq!(staged(without, format), of_avx512, "{format}");
        assert_eq!(staged(avx2, format), Some(Some(Scaled::Words)), "{format}");
    }
    for plain in ["iq4_xs", "iq4_nl"] {
        assert_eq!(staged(vnni, plain), None, "{plain}: a shuffle hides behind products");
    }
}

/// A matrix unit serves rows that are one run and super-blocks; whether values times integers of runs fit a byte is worked out, and so is
/// what fits the buffer. Runs of 32 k that have an f32 and no minimum pay from some tokens on, those with a minimum or of 16 k do not.
#[test]
fn tiles_hold_values_times_the_integers_of_their_runs() {
    let set = set();
    let tiles = |format: &str, label: &str| {
        let variant = variant(&set, |v| v.label == label);
        planned(&set, shipped_format(&set, format), variant, |resolved| {
            assert_eq!(resolved.tiles.is_some(), resolved.describe().contains("products of tiles"));
            resolved.tiles.map(|tiles| (tiles.operands, tiles.step * tiles.steps, tiles.k))
        })
    };
    use TileOperands::{Digits, Scaled, SplitIntegers, Values};
    assert_eq!(tiles("i2_s", "tiles"), Some((Values, 512, 64)));
    // Twenty k to a tile of codes: five whole tiles of the unit are sixteen of those.
    assert_eq!(tiles("i2_s", "dense_tiles"), Some((Values, 640, 64)));
    assert_eq!(tiles("tq2_0", "tiles"), Some((Values, 512, 64)));
    // 3 * 15, 4 * 32 (one more than a signed byte holds), 15 * 63, 32 * 128.
    assert_eq!(tiles("q2_k", "tiles"), Some((Scaled, 512, 64)));
    // No sign, and at most 15 * 15 and 31 * 7 with the low bits of an integer and with the high ones.
    assert_eq!(tiles("q4_k", "tiles"), Some((SplitIntegers(2), 256, 64)));
    assert_eq!(tiles("q5_k", "tiles"), Some((SplitIntegers(3), 256, 64)));
    for format in ["q3_k", "q6_k", "iq1_s", "iq2_xs", "iq3_s", "iq4_xs"] {
        assert_eq!(tiles(format, "tiles"), Some((Digits, 256, 64)), "{format}");
    }
    for every_32 in ["q4_0", "q5_0", "q8_0", "mxfp4", "iq4_nl", "q1_0"] {
        assert_eq!(tiles(every_32, "tiles"), Some((Values, 512, 32)), "{every_32}");
    }
    for no_gain in ["q4_1", "q5_1", "nvfp4"] {
        assert_eq!(tiles(no_gain, "tiles"), None, "{no_gain}");
    }
    let least = |format| {
        let variant = variant(&set, |v| v.label == "tiles");
        planned(&set, shipped_format(&set, format), variant, |resolved| resolved.least_tokens())
    };
    assert_eq!(["i2_s", "tq2_0", "q4_k", "q4_0", "q8_0"].map(least), [0, 0, 0, 32, 48]);
}
