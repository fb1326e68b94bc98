//! Frames: a mark, a kind, the number of the call, a length, and that many bytes.
//!
//! The port is a stream that outlives the programs on both ends of it. One that dies within a frame leaves
//! half of it behind, so every frame begins with a mark that the reader can search for.

use std::io::{self, Read, Write};

const MARK: [u8; 4] = *b"\x02rig";
/// Nothing longer is ever sent: what claims to be is garbage between two frames.
pub const MAX_BODY: usize = 8 << 20;

/// What a frame means. The first three are sent to the guest, the others by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Run the body with `/bin/sh -c`.
    Shell,
    /// `path`, NUL, bytes: the file is made anew with these.
    Write,
    /// `path`, NUL, bytes: they are put at the end of the file.
    Append,
    /// End the command with this number, and what it started.
    Kill,
    /// Some of the command's standard output.
    Out,
    /// Some of its standard error.
    Err,
    /// It ended: the exit code as four little-endian bytes, 128 + n for signal n.
    Exit,
}

const KINDS: [(Kind, u8); 7] = [
    (Kind::Shell, b'S'),
    (Kind::Write, b'W'),
    (Kind::Append, b'A'),
    (Kind::Kill, b'K'),
    (Kind::Out, b'o'),
    (Kind::Err, b'e'),
    (Kind::Exit, b'x'),
];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub kind: Kind,
    /// Chosen by the host; every answer carries it.
    pub call: u32,
    pub body: Vec<u8>,
}

impl Frame {
    pub fn new(kind: Kind, call: u32, body: impl Into<Vec<u8>>) -> Self {
        Self { kind, call, body: body.into() }
    }

    /// The end of a command.
    pub fn exit(call: u32, code: i32) -> Self {
        Self::new(Kind::Exit, call, code.to_le_bytes())
    }

    /// One `write`, so that frames of several threads do not mix as long as each holds the port for it.
    pub fn write_to(&self, to: &mut impl Write) -> io::Result<()> {
        let code = KINDS.iter().find(|(kind, _)| *kind == self.kind).map_or(0, |(_, code)| *code);
        let length = u32::try_from(self.body.len()).map_err(io::Error::other)?;
        let mut bytes = Vec::with_capacity(13 + self.body.len());
        bytes.extend_from_slice(&MARK);
        bytes.push(code);
        bytes.extend_from_slice(&self.call.to_le_bytes());
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(&self.body);
        to.write_all(&bytes)
    }

    /// The next whole frame; what does not begin with the mark is passed over.
    pub fn read_from(from: &mut impl Read) -> io::Result<Self> {
        loop {
            let mut seen = [0; 4];
            from.read_exact(&mut seen)?;
            while seen != MARK {
                seen.rotate_left(1);
                from.read_exact(&mut seen[3..])?;
            }
            let mut head = [0; 9];
            from.read_exact(&mut head)?;
            let [code, call @ .., _, _, _, _] = head;
            let [_, _, _, _, _, length @ ..] = head;
            let length = u32::from_le_bytes(length) as usize;
            let kind = KINDS.iter().find(|(_, known)| *known == code).map(|(kind, _)| *kind);
            let (Some(kind), true) = (kind, length <= MAX_BODY) else { continue };
            let mut body = vec![0; length];
            from.read_exact(&mut body)?;
            return Ok(Self { kind, call: u32::from_le_bytes(call), body });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(frame: &Frame) -> Vec<u8> {
        let mut bytes = Vec::new();
        frame.write_to(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn what_was_written_is_read() {
        for (kind, _) in KINDS {
            let frame = Frame::new(kind, 0x0102_0304, b"body".as_slice());
            assert_eq!(Frame::read_from(&mut bytes(&frame).as_slice()).unwrap(), frame);
        }
    }

    #[test]
    fn half_a_frame_is_passed_over() {
        let lost = Frame::new(Kind::Write, 1, vec![b'x'; 100]);
        let next = Frame::new(Kind::Shell, 2, b"true".as_slice());
        let mut stream = bytes(&lost)[..7].to_vec();
        stream.extend(bytes(&next));
        // The lost frame's head swallows some of the next one: what follows it is read again.
        stream.extend(bytes(&next));
        assert_eq!(Frame::read_from(&mut stream.as_slice()).unwrap(), next);
    }

    #[test]
    fn a_length_beyond_the_limit_is_not_believed() {
        let mut stream = MARK.to_vec();
        stream.extend([b'S', 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
        let next = Frame::new(Kind::Exit, 3, 0_i32.to_le_bytes());
        stream.extend(bytes(&next));
        assert_eq!(Frame::read_from(&mut stream.as_slice()).unwrap(), next);
    }

    #[test]
    fn a_stream_that_ends_is_an_error() {
        let whole = bytes(&Frame::exit(1, 0));
        assert!(Frame::read_from(&mut &whole[..whole.len() - 1]).is_err());
    }
}
