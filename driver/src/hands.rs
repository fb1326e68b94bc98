//! lvmd's client: how `driver node` reaches the one program that touches the node.
