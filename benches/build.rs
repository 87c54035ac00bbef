//! Tells the program of which commit it is, if it is built in a git tree or told `ONESIDED_COMMIT`.

use std::process::Command;

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    Some(text.trim().to_owned()).filter(|text| output.status.success() && !text.is_empty())
}

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=ONESIDED_COMMIT");
    // What changes with each commit, and with another branch.
    for name in ["HEAD", "logs/HEAD"] {
        let path = git(&["rev-parse", "--git-path", name]);
        if let Some(path) = path.filter(|path| std::fs::exists(path).unwrap_or(false)) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    let told = std::env::var("ONESIDED_COMMIT").ok().filter(|told| !told.is_empty());
    if let Some(commit) = told.or_else(|| git(&["rev-parse", "HEAD"])) {
        println!("cargo::rustc-env=ONESIDED_COMMIT={commit}");
    }
}
