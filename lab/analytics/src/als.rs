//! Alternating least squares for ratings (Zhou, Wilkinson, Schreiber and Pan, "Large-Scale Parallel
//! Collaborative Filtering for the Netflix Prize", AAIM 2008), over ratings like MovieLens's: few films are popular,
//! few people rate much.

use std::thread::sleep;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde_json::json;

use crate::{heavy_tailed, say};

/// Numbers that describe a user or a film.
const FACTORS: usize = 8;
/// Ratings of a user, on average.
const RATINGS_PER_USER: usize = 64;
/// Users for each film.
const USERS_PER_FILM: usize = 4;
const REGULARISATION: f32 = 0.1;

type Factors = [f32; FACTORS];

/// One side's ratings of the other.
struct Ratings {
    starts: Vec<u32>,
    others: Vec<u32>,
    values: Vec<f32>,
}

impl Ratings {
    /// The ratings of all users, about `bytes` of them when turned round too.
    fn generate(bytes: usize) -> (Self, usize) {
        let users = bytes / (2 * 8 * RATINGS_PER_USER);
        let films = (users / USERS_PER_FILM).max(16);
        let mut random = SmallRng::seed_from_u64(2);
        let mut taste = || -> Factors { std::array::from_fn(|_| random.random_range(0.0..1.0)) };
        let user_tastes: Vec<Factors> = (0..users).map(|_| taste()).collect();
        let film_tastes: Vec<Factors> = (0..films).map(|_| taste()).collect();
        let total = users * RATINGS_PER_USER;
        let mut ratings = Self::with_capacity(users, total);
        for user in user_tastes {
            ratings.starts.push(ratings.others.len() as u32);
            let count = (heavy_tailed(&mut random) * RATINGS_PER_USER as f64) as usize;
            for _ in 0..count.clamp(4, films).min(total - ratings.others.len()) {
                // Zipf's law with exponent 0.8.
                let film = (random.random::<f64>().powi(5) * films as f64) as usize;
                let liking = dot(&user, &film_tastes[film]) * 4.0 / FACTORS as f32;
                let stars = (1.0 + liking * 2.0 + random.random_range(-0.5..0.5)).clamp(0.5, 5.0);
                ratings.others.push(film as u32);
                ratings.values.push(stars);
            }
        }
        ratings.starts.push(ratings.others.len() as u32);
        (ratings, films)
    }

    fn with_capacity(ones: usize, ratings: usize) -> Self {
        Self {
            starts: Vec::with_capacity(ones + 1),
            others: Vec::with_capacity(ratings),
            values: Vec::with_capacity(ratings),
        }
    }

    /// The same ratings by the other side, of which there are `others`.
    fn turned(&self, others: usize) -> Self {
        let mut starts = vec![0u32; others + 1];
        for &other in &self.others {
            starts[other as usize + 1] += 1;
        }
        for at in 0..others {
            starts[at + 1] += starts[at];
        }
        let mut next = starts.clone();
        let mut turned = Self {
            starts,
            others: vec![0; self.others.len()],
            values: vec![0.0; self.values.len()],
        };
        for (one, range) in self.starts.windows(2).enumerate() {
            for at in range[0] as usize..range[1] as usize {
                let to = &mut next[self.others[at] as usize];
                turned.others[*to as usize] = one as u32;
                turned.values[*to as usize] = self.values[at];
                *to += 1;
            }
        }
        turned
    }

    fn of(&self, one: usize) -> impl Iterator<Item = (usize, f32)> {
        let range = self.starts[one] as usize..self.starts[one + 1] as usize;
        let others = self.others[range.clone()].iter().map(|&other| other as usize);
        others.zip(self.values[range].iter().copied())
    }

    /// The best factors of this side for those of the other.
    fn solve(&self, others: &[Factors], mine: &mut [Factors]) {
        for (one, factors) in mine.iter_mut().enumerate() {
            let mut matrix = [[0.0f32; FACTORS]; FACTORS];
            let mut right = [0.0f32; FACTORS];
            let mut count = 0.0f32;
            for (other, value) in self.of(one) {
                let other = &others[other];
                for row in 0..FACTORS {
                    for column in 0..=row {
                        matrix[row][column] += other[row] * other[column];
                    }
                    right[row] += other[row] * value;
                }
                count += 1.0;
            }
            for (at, row) in matrix.iter_mut().enumerate() {
                row[at] += REGULARISATION * count.max(1.0);
            }
            *factors = cholesky_solve(matrix, right);
        }
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Solves a positive definite system of which the lower half is given.
fn cholesky_solve(mut matrix: [[f32; FACTORS]; FACTORS], mut right: Factors) -> Factors {
    for row in 0..FACTORS {
        for column in 0..=row {
            let mut sum = matrix[row][column];
            sum -= dot(&matrix[row][..column], &matrix[column][..column]);
            matrix[row][column] =
                if row == column { sum.sqrt() } else { sum / matrix[column][column] };
        }
        for at in 0..row {
            right[row] -= matrix[row][at] * right[at];
        }
        right[row] /= matrix[row][row];
    }
    for row in (0..FACTORS).rev() {
        for below in row + 1..FACTORS {
            right[row] -= matrix[below][row] * right[below];
        }
        right[row] /= matrix[row][row];
    }
    right
}

/// The root of the mean squared error of what the factors say of the ratings.
fn error(ratings: &Ratings, users: &[Factors], films: &[Factors]) -> f64 {
    let mut sum = 0.0;
    for (user, factors) in users.iter().enumerate() {
        for (film, value) in ratings.of(user) {
            sum += f64::from(dot(factors, &films[film]) - value).powi(2);
        }
    }
    (sum / ratings.values.len().max(1) as f64).sqrt()
}

/// Makes ratings of `bytes` and factorises them, `runs` times.
///
/// # Errors
/// Nobody reads what it says.
pub fn run(bytes: usize, iterations: usize, runs: usize, pause_ms: u64) -> anyhow::Result<()> {
    for number in 0..runs {
        if number > 0 {
            sleep(Duration::from_millis(pause_ms));
        }
        let began = Instant::now();
        let (by_user, films) = Ratings::generate(bytes);
        let by_film = by_user.turned(films);
        say("load", began.elapsed().as_secs_f64(), json!(by_user.values.len()))?;
        let factorised = Instant::now();
        let mut user_factors = vec![[0.0; FACTORS]; by_user.starts.len() - 1];
        let mut film_factors: Vec<Factors> =
            (0..films).map(|film| std::array::from_fn(|at| (1 + (film + at) % 5) as f32)).collect();
        for iteration in 0..iterations {
            let from = Instant::now();
            by_user.solve(&film_factors, &mut user_factors);
            by_film.solve(&user_factors, &mut film_factors);
            say("iteration", from.elapsed().as_secs_f64(), json!(iteration))?;
        }
        let result = json!({ "error": error(&by_user, &user_factors, &film_factors) });
        say("run", factorised.elapsed().as_secs_f64(), result.clone())?;
        say("end", began.elapsed().as_secs_f64(), result)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_system_is_solved() {
        let matrix: [[f32; FACTORS]; FACTORS] = std::array::from_fn(|row| {
            std::array::from_fn(|column| if row == column { 10.0 + row as f32 } else { 1.0 })
        });
        let known: Factors = std::array::from_fn(|at| at as f32 - 3.0);
        let right = std::array::from_fn(|row| dot(&matrix[row], &known));
        let solved = cholesky_solve(matrix, right);
        for (solved, known) in solved.iter().zip(known) {
            assert!((solved - known).abs() < 1e-4, "{solved} {known}");
        }
    }

    #[test]
    fn the_factors_explain_the_ratings() {
        let (by_user, films) = Ratings::generate(1 << 20);
        let by_film = by_user.turned(films);
        let users = by_user.starts.len() - 1;
        let mut user_factors = vec![[0.0; FACTORS]; users];
        let mut film_factors = vec![[1.0; FACTORS]; films];
        film_factors.iter_mut().enumerate().for_each(|(at, it)| it[at % FACTORS] = 2.0);
        let before = error(&by_user, &user_factors, &film_factors);
        for _ in 0..4 {
            by_user.solve(&film_factors, &mut user_factors);
            by_film.solve(&user_factors, &mut film_factors);
        }
        let after = error(&by_user, &user_factors, &film_factors);
        assert!(after < before / 4.0, "{before} {after}");
    }
}
