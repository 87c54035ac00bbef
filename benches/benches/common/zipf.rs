//! Zipf's distribution, as YCSB draws it (Gray et al., "Quickly generating billion-record synthetic
//! databases").

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Draws numbers; the most frequent ones are not neighbours if the caller spreads them.
pub struct Zipf {
    keys: f64,
    theta: f64,
    zeta: f64,
    alpha: f64,
    eta: f64,
    random: SmallRng,
}

impl Zipf {
    /// Over so many numbers, with an exponent below 1.
    pub fn new(keys: u64, theta: f64, seed: u64) -> Self {
        let zeta: f64 = (1..=keys).map(|rank| (rank as f64).powf(-theta)).sum();
        let zeta_2 = 1.0 + 0.5f64.powf(theta);
        let keys = keys as f64;
        let eta = (1.0 - (2.0 / keys).powf(1.0 - theta)) / (1.0 - zeta_2 / zeta);
        let alpha = 1.0 / (1.0 - theta);
        Self { keys, theta, zeta, alpha, eta, random: SmallRng::seed_from_u64(seed) }
    }

    /// A rank from 0, the most frequent one.
    pub fn next(&mut self) -> u64 {
        let uniform: f64 = self.random.random();
        let scaled = uniform * self.zeta;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < 1.0 + 0.5f64.powf(self.theta) {
            return 1;
        }
        (self.keys * (self.eta * uniform - self.eta + 1.0).powf(self.alpha)) as u64
    }
}
