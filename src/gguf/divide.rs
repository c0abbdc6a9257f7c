//! Pieces in order, divided over devices in order: so that the slowest is done first, within the room of each.

/// What a device has room for, in bytes, and how fast it is beside others.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub(super) bytes: u64,
    pub(super) speed: f64,
}

/// What is known of the pieces in front of one: the longest time of a device, the time of all, and where the last device begins.
#[derive(Clone, Copy)]
struct Best {
    longest: f64,
    all: f64,
    begin: usize,
}

/// Where the pieces of each device end, in order: so that the slowest is done first, of those as few bytes' time as can be, within the room of each;
/// `None` where they fit in no way. A piece has its bytes on each device, `None` where it can't be there.
///
/// The more pieces devices have, the longer they take. So of the places where the last device may begin, in front of some piece, the time of
/// those before it grows and its own falls, and where they meet is found by halving: n log n steps for n pieces on each device.
pub(super) fn divide(pieces: &[Vec<Option<u64>>], devices: &[Room]) -> Option<Vec<usize>> {
    let mut before = vec![Best { longest: 0.0, all: 0.0, begin: 0 }];
    let mut begins: Vec<Vec<usize>> = Vec::new();
    for (device, room) in devices.iter().enumerate() {
        before = with(&before, pieces, device, room);
        begins.push(before.iter().map(|best| best.begin).collect());
    }
    let mut ends = vec![0; devices.len()];
    let mut end = pieces.len();
    for (begins, place) in begins.iter().zip(&mut ends).rev() {
        *place = end;
        end = *begins.get(end)?;
    }
    Some(ends)
}

/// The best for none to all pieces with one device more, up to the last number that fits. `before` is the same without it: who has room for
/// some pieces has room for fewer.
fn with(before: &[Best], pieces: &[Vec<Option<u64>>], device: usize, room: &Room) -> Vec<Best> {
    // Bytes in front of each piece; those that can't be here are never counted.
    let mut sums = vec![0u128];
    for piece in pieces {
        let sum = sums.last().copied().unwrap_or(0);
        sums.push(sum + u128::from(piece[device].unwrap_or(0)));
    }
    let time = |bytes: u128| bytes as f64 / room.speed;
    // What the time of all is beside others, wherever the pieces end.
    let beside = before.iter().zip(&sums).map(|(best, sum)| best.all - time(*sum)).collect();
    let least = Least::of(beside);
    let mut row = Vec::new();
    let mut first = 0;
    for end in 0..=pieces.len() {
        if end > 0 && pieces[end - 1][device].is_none() {
            first = end;
        }
        while first < end && sums[end] - sums[first] > u128::from(room.bytes) {
            first += 1;
        }
        let last = end.min(before.len().saturating_sub(1));
        if before.is_empty() || first > last {
            break;
        }
        let own = |begin: usize| time(sums[end] - sums[begin]);
        let longest = |begin: usize| before[begin].longest.max(own(begin));
        // The first place from which on the devices before are those that take longest.
        let meet = first + partition(last - first, |step| before[first + step].longest < own(first + step));
        let shortest = if meet > first { longest(meet).min(longest(meet - 1)) } else { longest(meet) };
        let from = first + partition(last - first, |step| own(first + step) > shortest);
        let to = first + partition(last + 1 - first, |step| before[first + step].longest <= shortest);
        let begin = least.between(from, to.max(from + 1));
        row.push(Best { longest: longest(begin), all: before[begin].all + own(begin), begin });
    }
    row
}

/// The first number from 0 on for which something does not hold that holds for all before, and `count` where it holds for all below that.
fn partition(count: usize, holds: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = low + (high - low) / 2;
        if holds(middle) { low = middle + 1 } else { high = middle }
    }
    low
}

/// Where the least of some numbers is, between any two places: kept for each stretch of 1, 2, 4, ... of them.
struct Least {
    numbers: Vec<f64>,
    levels: Vec<Vec<usize>>,
}

impl Least {
    fn of(numbers: Vec<f64>) -> Least {
        let mut least = Least { levels: vec![(0..numbers.len()).collect()], numbers };
        let mut length = 1;
        while 2 * length <= least.numbers.len() {
            let below = &least.levels[least.levels.len() - 1];
            let level = below.iter().zip(&below[length..]).map(|(a, b)| least.lesser(*a, *b)).collect();
            least.levels.push(level);
            length *= 2;
        }
        least
    }

    /// The last of those that are least.
    fn lesser(&self, a: usize, b: usize) -> usize {
        if self.numbers[a] < self.numbers[b] { a } else { b }
    }

    /// The place of the least from `from` up to before `to`, which is larger.
    fn between(&self, from: usize, to: usize) -> usize {
        let level = (to - from).ilog2() as usize;
        self.lesser(self.levels[level][from], self.levels[level][to - (1 << level)])
    }
}

#[cfg(test)]
mod tests {
    use super::{Room, divide};

    fn rooms(rooms: &[(u64, f64)]) -> Vec<Room> {
        rooms.iter().map(|(bytes, speed)| Room { bytes: *bytes, speed: *speed }).collect()
    }

    fn even(count: usize, bytes: u64, devices: usize) -> Vec<Vec<Option<u64>>> {
        vec![vec![Some(bytes); devices]; count]
    }

    const ROOM: u64 = 1 << 40;

    /// The longest time of a device, of three whose pieces end there; `None` where they do not fit.
    fn longest(pieces: &[Vec<Option<u64>>], devices: &[Room], ends: [usize; 3]) -> Option<f64> {
        let mut longest = 0.0f64;
        for (at, room) in devices.iter().enumerate() {
            let start = if at == 0 { 0 } else { ends[at - 1] };
            let bytes = pieces[start..ends[at]].iter().try_fold(0, |sum, piece| Some(sum + piece[at]?))?;
            if bytes > room.bytes {
                return None;
            }
            longest = longest.max(bytes as f64 / room.speed);
        }
        Some(longest)
    }

    /// The least of these, of all divisions.
    fn best_of_all(pieces: &[Vec<Option<u64>>], devices: &[Room]) -> Option<f64> {
        let count = pieces.len();
        let all = (0..=count).flat_map(|first| (first..=count).map(move |second| [first, second, count]));
        all.filter_map(|ends| longest(pieces, devices, ends)).min_by(f64::total_cmp)
    }

    #[test]
    fn pieces_go_by_speed_within_the_room() {
        // Twelve pieces by 1 to 2 and by 2 to 1 to 1.
        assert_eq!(divide(&even(12, 10, 2), &rooms(&[(ROOM, 1.0), (ROOM, 2.0)])), Some(vec![4, 12]));
        let three = rooms(&[(ROOM, 2.0), (ROOM, 1.0), (ROOM, 1.0)]);
        assert_eq!(divide(&even(12, 10, 3), &three), Some(vec![6, 9, 12]));
        // The faster one has room for three.
        assert_eq!(divide(&even(12, 10, 2), &rooms(&[(ROOM, 1.0), (39, 9.0)])), Some(vec![9, 12]));
        // A large one in front.
        let mut pieces = even(5, 10, 2);
        pieces[0] = vec![Some(40); 2];
        assert_eq!(divide(&pieces, &rooms(&[(ROOM, 1.0), (ROOM, 1.0)])), Some(vec![1, 5]));
        // One has no kernel for the second: what is behind it may be there.
        pieces[1] = vec![Some(10), None];
        assert_eq!(divide(&pieces, &rooms(&[(ROOM, 1.0), (ROOM, 1.0)])), Some(vec![2, 5]));
    }

    #[test]
    fn every_other_division_is_no_faster() {
        // All divisions of seven pieces over three devices, by counting.
        let pieces: Vec<Vec<Option<u64>>> =
            [7, 3, 9, 4, 4, 8, 2].iter().map(|bytes| vec![Some(*bytes); 3]).collect();
        for devices in [
            rooms(&[(ROOM, 1.0), (ROOM, 1.5), (ROOM, 0.5)]),
            rooms(&[(12, 3.0), (20, 1.0), (ROOM, 1.0)]),
            rooms(&[(19, 1.0), (9, 1.0), (18, 1.0)]),
        ] {
            let found = divide(&pieces, &devices).map(|ends| <[usize; 3]>::try_from(ends).expect("three"));
            let time = |ends| longest(&pieces, &devices, ends);
            let best = best_of_all(&pieces, &devices);
            assert_eq!(found.and_then(time), best, "{devices:?}");
        }
    }

    #[test]
    fn what_does_not_fit_is_no_division() {
        assert_eq!(divide(&even(3, 10, 2), &rooms(&[(10, 1.0), (19, 1.0)])), None);
        assert_eq!(divide(&even(3, 10, 2), &rooms(&[(10, 1.0), (20, 1.0)])), Some(vec![1, 3]));
        assert_eq!(divide(&[], &rooms(&[(0, 1.0)])), Some(vec![0]));
        assert_eq!(divide(&[vec![None]], &rooms(&[(ROOM, 1.0)])), None);
        assert_eq!(divide(&even(2, u64::MAX, 1), &rooms(&[(u64::MAX, 1.0)])), None);
    }

    #[test]
    fn a_hundred_thousand_pieces_are_divided_at_once() {
        let begun = std::time::Instant::now();
        let devices = rooms(&[(ROOM, 1.0), (ROOM, 2.0), (ROOM, 1.0), (ROOM, 1.0)]);
        let ends = divide(&even(100_000, 10, 4), &devices);
        assert_eq!(ends, Some(vec![20_000, 60_000, 80_000, 100_000]));
        // By the square of their number it would be minutes.
        assert!(begun.elapsed().as_secs() < 20, "{:?}", begun.elapsed());
    }

    #[test]
    fn random_divisions_are_those_of_trying_all() {
        let mut state = 1u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for _ in 0..300 {
            let count = random(7) as usize;
            let devices = rooms(&[0; 3].map(|_| (random(40), 1.0 + random(3) as f64)));
            let piece = |random: &mut dyn FnMut(u64) -> u64| match random(8) {
                0 => None,
                bytes => Some(2 * bytes - 2),
            };
            let pieces: Vec<Vec<Option<u64>>> =
                (0..count).map(|_| (0..3).map(|_| piece(&mut random)).collect()).collect();
            let found = divide(&pieces, &devices).map(|ends| <[usize; 3]>::try_from(ends).expect("three"));
            let time = |ends| longest(&pieces, &devices, ends);
            let best = best_of_all(&pieces, &devices);
            assert_eq!(found.and_then(time), best, "{pieces:?} {devices:?}");
        }
    }
}
