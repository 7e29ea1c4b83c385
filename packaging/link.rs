//! Build script of `skiff` and `skiff-helper`: their release has the functions of a start side by side (docs/decisions/010).

fn main() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/start.ld");
    println!("cargo::rerun-if-changed={script}");
    if std::env::var("PROFILE").is_ok_and(|profile| profile == "release") {
        println!("cargo::rustc-link-arg-bins=-Wl,-T,{script}");
    }
}
