//! What a row of measurements says: never a mean, always with its spread.

use serde::Serialize;

/// The extremes and the middle of some samples, and how well the middle is known.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    pub min: f64,
    pub median: f64,
    pub max: f64,
    /// The median lies between these with 95 % confidence, whatever the distribution.
    pub from: f64,
    pub to: f64,
}

impl Spread {
    /// `samples` must not be empty and hold numbers only.
    pub fn of(samples: &[f64]) -> Self {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (count, last) = (sorted.len(), sorted.len() - 1);
        // Order statistics: the number of samples below the true median is binomial(n, 1/2), here by its normal
        // approximation (1.96 standard deviations of sqrt(n)/2).
        let outside = (count as f64 / 2.0 - 0.98 * (count as f64).sqrt()).floor().max(0.0) as usize;
        Self {
            min: sorted[0],
            median: f64::midpoint(sorted[last / 2], sorted[count / 2]),
            max: sorted[last],
            from: sorted[outside],
            to: sorted[last - outside],
        }
    }
}

/// `samples[i] / against[i]`: each pair was taken in the same round, so what the machine did meanwhile cancels out.
pub fn ratios(samples: &[f64], against: &[f64]) -> Vec<f64> {
    samples.iter().zip(against).map(|(a, b)| a / b).collect()
}

/// `samples[i] - against[i]`, taken in pairs as in [`ratios`].
pub fn differences(samples: &[f64], against: &[f64]) -> Vec<f64> {
    samples.iter().zip(against).map(|(a, b)| a - b).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread() {
        let cases: &[(&[f64], [f64; 5])] = &[
            (&[3.0], [3.0, 3.0, 3.0, 3.0, 3.0]),
            (&[4.0, 1.0], [1.0, 2.5, 4.0, 1.0, 4.0]),
            (&[5.0, 1.0, 3.0], [1.0, 3.0, 5.0, 1.0, 5.0]),
            // Ten samples: the second to the ninth.
            (&[9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0, 0.0], [0.0, 4.5, 9.0, 1.0, 8.0]),
        ];
        for (samples, [min, median, max, from, to]) in cases {
            let expected = Spread { min: *min, median: *median, max: *max, from: *from, to: *to };
            assert_eq!(Spread::of(samples), expected, "{samples:?}");
        }
    }

    #[test]
    fn pairs() {
        assert_eq!(ratios(&[2.0, 9.0], &[1.0, 3.0]), [2.0, 3.0]);
        assert_eq!(differences(&[2.0, 9.0], &[1.0, 3.0]), [1.0, 6.0]);
    }
}
