//! `strftime_now` for templates: the time comes from the caller, only the formatting is here.

/// A civil date and time of day.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Civil {
    year: i64,
    month: usize,
    day: i64,
    /// Days since 1 January, from 0.
    day_of_year: i64,
    /// Days since Sunday.
    weekday: usize,
    hour: i64,
    minute: i64,
    second: i64,
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const SECONDS_PER_DAY: i64 = 86_400;

/// Formats seconds since 1970 as C's `strftime` does in the C locale. `%-d` drops the padding. An
/// unknown directive is the error.
pub(crate) fn strftime(seconds: i64, format: &str) -> Result<String, String> {
    let time = civil(seconds);
    let mut out = String::new();
    let mut characters = format.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            out.push(character);
            continue;
        }
        let mut directive = characters.next();
        let padded = directive != Some('-');
        if !padded {
            directive = characters.next();
        }
        let text = directive.and_then(|letter| expand(&time, letter));
        let text = text.ok_or_else(|| format!("strftime_now: unknown format in {format:?}"))?;
        let number = !padded && text.chars().all(|digit| digit.is_ascii_digit());
        let bare = text.trim_start_matches('0');
        out.push_str(match (number, bare) {
            (true, "") => "0",
            (true, bare) => bare,
            (false, _) => &text,
        });
    }
    Ok(out)
}

fn expand(time: &Civil, directive: char) -> Option<String> {
    let hour_12 = (time.hour + 11) % 12 + 1;
    Some(match directive {
        'Y' => time.year.to_string(),
        'y' => format!("{:02}", time.year.rem_euclid(100)),
        'm' => format!("{:02}", time.month),
        'B' => MONTHS[time.month - 1].to_owned(),
        'b' | 'h' => MONTHS[time.month - 1][..3].to_owned(),
        'd' => format!("{:02}", time.day),
        'e' => format!("{:2}", time.day),
        'j' => format!("{:03}", time.day_of_year + 1),
        'A' => DAYS[time.weekday].to_owned(),
        'a' => DAYS[time.weekday][..3].to_owned(),
        'w' => time.weekday.to_string(),
        'u' => ((time.weekday + 6) % 7 + 1).to_string(),
        'H' => format!("{:02}", time.hour),
        'I' => format!("{hour_12:02}"),
        'M' => format!("{:02}", time.minute),
        'S' => format!("{:02}", time.second),
        'p' => if time.hour < 12 { "AM" } else { "PM" }.to_owned(),
        'F' => format!("{}-{:02}-{:02}", time.year, time.month, time.day),
        'T' => format!("{:02}:{:02}:{:02}", time.hour, time.minute, time.second),
        'R' => format!("{:02}:{:02}", time.hour, time.minute),
        'D' => format!("{:02}/{:02}/{:02}", time.month, time.day, time.year.rem_euclid(100)),
        '%' => "%".to_owned(),
        _ => return None,
    })
}

/// Gregorian date of a count of seconds (Hinnant, "chrono-Compatible Low-Level Date Algorithms",
/// `civil_from_days`: years begin in March so that the leap day is the last one).
fn civil(seconds: i64) -> Civil {
    let (days, of_day) = (seconds.div_euclid(SECONDS_PER_DAY), seconds.rem_euclid(SECONDS_PER_DAY));
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let leap_days = day_of_era / 1_460 - day_of_era / 36_524 + day_of_era / 146_096;
    let year_of_era = (day_of_era - leap_days) / 365;
    let from_march = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * from_march + 2) / 153;
    let day = from_march - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let day_of_year = if month > 2 { from_march + 59 + i64::from(leap) } else { from_march - 306 };
    Civil {
        year,
        month: usize::try_from(month).expect("months are 1 to 12"),
        day,
        day_of_year,
        weekday: usize::try_from((days + 4).rem_euclid(7)).expect("weekdays are 0 to 6"),
        hour: of_day / 3_600,
        minute: of_day / 60 % 60,
        second: of_day % 60,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_moments_are_formatted_as_c_does() {
        // Expected values from Python's `time.strftime` in UTC.
        let cases = [
            (0, "%Y-%m-%d %H:%M:%S %a %j", "1970-01-01 00:00:00 Thu 001"),
            (1_709_210_096, "%d %b %Y, %A, %I:%M %p, %j", "29 Feb 2024, Thursday, 12:34 PM, 060"),
            (1_735_689_599, "%F %T %j %u %y", "2024-12-31 23:59:59 366 2 24"),
            (951_827_696, "%-d %B %-m %e %%", "29 February 2 29 %"),
            (-1, "%D %R %h %w", "12/31/69 23:59 Dec 3"),
            (1_000_000_000, "%-I %-M %-S %-H %-d", "1 46 40 1 9"),
        ];
        for (seconds, format, right) in cases {
            assert_eq!(strftime(seconds, format).as_deref(), Ok(right), "{seconds}");
        }
    }

    #[test]
    fn every_day_of_four_centuries_follows_the_day_before() {
        let mut last = civil(0);
        for day in 1..=146_097 {
            let next = civil(day * SECONDS_PER_DAY);
            let same_month = (next.year, next.month) == (last.year, last.month);
            assert_eq!(next.day, if same_month { last.day + 1 } else { 1 });
            let same_year = next.year == last.year;
            assert_eq!(next.day_of_year, if same_year { last.day_of_year + 1 } else { 0 });
            last = next;
        }
        assert_eq!((last.year, last.month, last.day), (2370, 1, 1));
    }

    #[test]
    fn an_unknown_directive_is_named() {
        assert!(strftime(0, "%Q").unwrap_err().contains("%Q"));
        assert!(strftime(0, "100%").is_err());
        assert!(strftime(0, "%-").is_err());
    }
}
