//! Holds a pod's namespaces, and does nothing else.

fn main() {
    loop {
        std::thread::park();
    }
}
