//! A codebook by columns, so that a search has the sums of several entries at once.

/// Entries whose sums are taken at once: as many as the widest vectors hold of f32.
pub const LANES: usize = 16;

/// `entries` in `B` steps of [`LANES`], each by columns: the integers that its entries have at one place. Where the last step is not full,
/// the first entry stands again, which is never better than itself.
///
/// # Panics
/// `B` steps are not those that `N` entries need.
pub const fn columns<T: Copy, const W: usize, const N: usize, const B: usize>(
    entries: &[[T; W]; N],
) -> [[[T; LANES]; W]; B] {
    assert!(B == N.div_ceil(LANES), "the steps hold all entries");
    let mut columns = [[[entries[0][0]; LANES]; W]; B];
    let mut at = 0;
    while at < B * LANES {
        let entry = if at < N { at } else { 0 };
        let mut place = 0;
        while place < W {
            columns[at / LANES][place][at % LANES] = entries[entry][place];
            place += 1;
        }
        at += 1;
    }
    columns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_step_is_filled_up_with_the_first_entry() {
        let mut entries = [[0u8; 2]; 19];
        for (at, entry) in (0..).zip(&mut entries) {
            *entry = [at, 100 + at];
        }
        let steps: [_; 2] = columns(&entries);
        assert_eq!(steps[0][1], std::array::from_fn(|lane| 100 + lane as u8));
        assert_eq!(steps[1][0], [16, 17, 18, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
}
