//! What probes may cost.

/// A part of a process's time, in percent.
pub(super) fn share(text: &str) -> Result<f64, String> {
    let percent = text.strip_suffix('%').and_then(|number| number.parse::<f64>().ok());
    let share = percent.filter(|percent| *percent > 0.0 && *percent <= 100.0).map(|percent| percent / 100.0);
    share.ok_or_else(|| "give a part of a process's time above 0% and up to 100%, such as 2%".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_a_part_of_time_that_says_what_it_is_of() {
        assert_eq!(share("2%"), Ok(0.02));
        assert_eq!(share("0.5%"), Ok(0.005));
        assert_eq!(share("100%"), Ok(1.0));
        for wrong in ["0", "0%", "-1%", "200%", "abc", "%", "", "2", "0.02", "nan%", "inf%", "2 %", "2%%"] {
            let error = share(wrong).unwrap_err();
            assert!(error.contains("such as 2%") && error.lines().count() == 1, "{wrong}: {error}");
        }
    }
}
