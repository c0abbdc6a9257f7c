//! Moments in words.

/// Seconds since 1970 as `2026-11-23 07:12`, in UTC. The calendar is Howard Hinnant's `civil_from_days`
/// (<https://howardhinnant.github.io/date_algorithms.html>).
pub fn date(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400 + 719_468, seconds % 86_400);
    // Years begin in March, so that the day of a leap year is its last.
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, march) = (day - (153 * month + 2) / 5 + 1, month < 10);
    let (month, year) = if march { (month + 3, era * 400 + year) } else { (month - 9, era * 400 + year + 1) };
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}", second / 3600, second / 60 % 60)
}

#[cfg(test)]
mod tests {
    use super::date;

    #[test]
    fn dates_are_those_of_the_calendar() {
        // From `date -u -d @SECONDS`.
        for (seconds, text) in [
            (0, "1970-01-01 00:00"),
            (951_782_400, "2000-02-29 00:00"),
            (951_868_799, "2000-02-29 23:59"),
            (1_798_761_599, "2026-12-31 23:59"),
            (4_107_542_400, "2100-03-01 00:00"),
        ] {
            assert_eq!(date(seconds), text);
        }
    }
}
