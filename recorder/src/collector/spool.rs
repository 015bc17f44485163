//! A file without a name, for what may never be in a trace: bytes are put aside there and taken back or
//! forgotten, and what comes later takes the place of what is gone.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use flatwalk_recorder::sys;
use flatwalk_trace::TraceError;

use crate::names::aside_name;

/// Room is given in units of so many bytes.
const UNIT: u64 = 4096;

/// The file.
#[derive(Debug)]
pub struct Spool {
    path: PathBuf,
    file: File,
    /// Units that hold nothing, and how many the file has in all.
    free: Vec<Range<u64>>,
    units: u64,
    /// Bytes put aside and taken back so far.
    #[cfg(test)]
    pub traffic: (u64, u64),
}

/// Where bytes were put.
#[derive(Debug)]
pub struct Stored {
    units: Vec<Range<u64>>,
    bytes: usize,
}

impl Spool {
    /// A file in the directory of `path`, whose name and name in messages are made from it.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn create(path: &Path) -> Result<Spool, TraceError> {
        let path = aside_name(path);
        let file = File::options().read(true).write(true).create_new(true).open(&path);
        let nameless = file.and_then(|file| fs::remove_file(&path).map(|()| file));
        match nameless {
            Ok(file) => Ok(Spool {
                path,
                file,
                free: Vec::new(),
                units: 0,
                #[cfg(test)]
                traffic: (0, 0),
            }),
            Err(source) => Err(TraceError::Io { path, source }),
        }
    }

    /// Puts bytes aside.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn store(&mut self, bytes: &[u8]) -> Result<Stored, TraceError> {
        let stored = self.room(bytes.len());
        let mut rest = bytes;
        for units in &stored.units {
            let length = ((units.end - units.start) * UNIT).min(rest.len() as u64) as usize;
            let (here, later) = rest.split_at(length);
            if let Err(source) = self.file.write_all_at(here, units.start * UNIT) {
                self.forget(stored);
                return Err(self.failed(source));
            }
            rest = later;
        }
        #[cfg(test)]
        {
            self.traffic.0 += bytes.len() as u64;
        }
        Ok(stored)
    }

    /// Room for so many bytes.
    fn room(&mut self, bytes: usize) -> Stored {
        let mut wanted = (bytes as u64).div_ceil(UNIT);
        let mut units = Vec::new();
        while wanted > 0 {
            let mut range = self.free.pop().unwrap_or_else(|| {
                let new = self.units..self.units + wanted;
                self.units = new.end;
                new
            });
            if range.end - range.start > wanted {
                self.free.push(range.start + wanted..range.end);
                range.end = range.start + wanted;
            }
            wanted -= range.end - range.start;
            units.push(range);
        }
        Stored { units, bytes }
    }

    /// Takes bytes back, to `bytes`; the disk has their room again, where the file system can give it.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn take(&mut self, stored: Stored, bytes: &mut Vec<u8>) -> Result<(), TraceError> {
        bytes.clear();
        bytes.resize(stored.bytes, 0);
        let mut rest = &mut bytes[..];
        for units in &stored.units {
            let length = ((units.end - units.start) * UNIT).min(rest.len() as u64) as usize;
            let (here, later) = rest.split_at_mut(length);
            let place = units.start * UNIT;
            self.file.read_exact_at(here, place).map_err(|source| self.failed(source))?;
            // The trace that the bytes go to may need it.
            sys::give_up_room(&self.file, place, (units.end - units.start) * UNIT);
            rest = later;
        }
        #[cfg(test)]
        {
            self.traffic.1 += stored.bytes as u64;
        }
        self.forget(stored);
        Ok(())
    }

    /// What comes later may take the place of these bytes.
    pub fn forget(&mut self, stored: Stored) {
        self.free.extend(stored.units);
    }

    /// What to say of bytes that are not as they were put aside.
    pub fn damaged(&self, what: &str) -> TraceError {
        self.failed(io::Error::new(io::ErrorKind::InvalidData, what))
    }

    /// An error, with the file's name.
    fn failed(&self, source: io::Error) -> TraceError {
        TraceError::Io { path: self.path.clone(), source }
    }

    /// Bytes of the file.
    #[cfg(test)]
    pub fn length(&self) -> u64 {
        self.units * UNIT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_aside_comes_back_and_its_room_is_used_again() {
        let name = format!("flatwalk-spool-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let mut spool = Spool::create(&path).unwrap();
        assert!(!aside_name(&path).exists());
        let content = |number: usize| vec![number as u8; number * 1500 % 20_000];
        let mut kept = std::collections::VecDeque::new();
        let mut bytes = Vec::new();
        for number in 0..1000 {
            kept.push_back((number, spool.store(&content(number)).unwrap()));
            if number % 3 == 0
                && let Some((_, stored)) = kept.remove(kept.len() / 2)
            {
                spool.forget(stored);
            }
            if kept.len() > 20
                && let Some((number, stored)) = kept.pop_front()
            {
                spool.take(stored, &mut bytes).unwrap();
                assert_eq!(bytes, content(number));
            }
        }
        for (number, stored) in kept {
            spool.take(stored, &mut bytes).unwrap();
            assert_eq!(bytes, content(number));
        }
        assert!(spool.length() <= 23 * 20_480, "{}", spool.length());
    }
}
