//! What the user asked for, as plugin arguments.

use std::ops::Range;
use std::path::PathBuf;

/// What the user asked for, as plugin arguments.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Path of the collector's socket.
    pub socket: PathBuf,
    /// Instructions to pass over before recording, in each process.
    pub skip: u64,
    /// Instructions to record at most, in each process.
    pub limit: Option<u64>,
    /// Of a sample: instructions of a segment; without it, everything is recorded.
    pub segment: Option<u64>,
    /// How many segments there are at least.
    pub windows: u64,
    /// What chance decides of a sample.
    pub seed: u64,
    /// Where recording starts.
    pub start_at: Option<Place>,
    /// Where recording ends.
    pub stop_at: Option<Place>,
    /// Whether programs started through exec are recorded.
    pub follow_exec: bool,
    /// Of a guest: the name of the program to record, if that is not the command.
    pub program: Option<String>,
    /// Of a guest: where its kernel turns to another thread.
    pub switch: Option<u64>,
    /// Of a guest: the code by which its kernel returns to programs, one range for each way.
    pub returns: Vec<Range<u64>>,
    /// What the trace is called; if not given, as the program that QEMU runs.
    pub name: Option<String>,
}

impl Options {
    /// Reads the plugin's arguments, `key=value`.
    ///
    /// # Errors
    /// A message that names the argument.
    pub fn parse(arguments: &[String]) -> Result<Options, String> {
        let mut options = Options { follow_exec: true, windows: 32, ..Options::default() };
        for argument in arguments {
            let (key, value) =
                argument.split_once('=').ok_or_else(|| format!("`{argument}` is not KEY=VALUE"))?;
            let number = || value.parse::<u64>().map_err(|_| format!("`{argument}`: not a number"));
            let address = |digits| {
                u64::from_str_radix(digits, 16).map_err(|_| format!("`{argument}`: not an address"))
            };
            match key {
                "socket" => options.socket = value.into(),
                "skip" => options.skip = number()?,
                "limit" => options.limit = Some(number()?),
                "segment" => options.segment = Some(number()?),
                "windows" => options.windows = number()?,
                "seed" => options.seed = number()?,
                "start-at" => options.start_at = Some(value.parse()?),
                "stop-at" => options.stop_at = Some(value.parse()?),
                "follow-exec" => options.follow_exec = value == "on",
                "program" => options.program = Some(value.into()),
                "switch" => options.switch = Some(address(value)?),
                "sysret" | "iret" => {
                    let (start, end) = value
                        .split_once('-')
                        .ok_or_else(|| format!("`{argument}`: not a range"))?;
                    options.returns.push(address(start)?..address(end)?);
                }
                "name" => options.name = Some(value.into()),
                _ => return Err(format!("`{key}` is not an option of this plugin")),
            }
        }
        if options.socket.as_os_str().is_empty() {
            return Err("no socket=PATH of a collector; use `flatwalk record`".into());
        }
        Ok(options)
    }

    /// The arguments that [`Options::parse`] makes these of.
    pub fn as_arguments(&self) -> Vec<(&'static str, String)> {
        let mut arguments = vec![("socket", self.socket.to_string_lossy().into_owned())];
        if self.skip > 0 {
            arguments.push(("skip", self.skip.to_string()));
        }
        arguments.extend(self.limit.map(|limit| ("limit", limit.to_string())));
        if let Some(segment) = self.segment {
            arguments.push(("segment", segment.to_string()));
            arguments.push(("windows", self.windows.to_string()));
            arguments.push(("seed", self.seed.to_string()));
        }
        arguments.extend(self.start_at.as_ref().map(|place| ("start-at", place.to_string())));
        arguments.extend(self.stop_at.as_ref().map(|place| ("stop-at", place.to_string())));
        arguments.push(("follow-exec", if self.follow_exec { "on" } else { "off" }.into()));
        arguments
    }
}

/// A place in the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// An address.
    Address(u64),
    /// A symbol of the program or of a library it loads.
    Symbol(String),
    /// The program's own `flatwalk_start()`; to stop at, `flatwalk_stop()`.
    Marker,
}

impl std::str::FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Place, String> {
        if text == "marker" {
            return Ok(Place::Marker);
        }
        match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16)
                .map(Place::Address)
                .map_err(|_| format!("`{text}` is not a hexadecimal address")),
            None => Ok(Place::Symbol(text.into())),
        }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::Address(address) => write!(formatter, "{address:#x}"),
            Place::Symbol(name) => formatter.write_str(name),
            Place::Marker => formatter.write_str("marker"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guests_program_and_addresses_are_understood() {
        let parse = |more: &str| Options::parse(&["socket=/s".into(), more.into()]);
        assert_eq!(parse("program=redis-server").unwrap().program.as_deref(), Some("redis-server"));
        assert_eq!(parse("switch=ffffffff81000040").unwrap().switch, Some(0xffff_ffff_8100_0040));
        assert!(parse("switch=here").unwrap_err().contains("not an address"));
        let one = parse("sysret=10-2f").unwrap().returns;
        assert_eq!((one.len(), one[0].clone()), (1, 0x10..0x2f));
        assert_eq!(parse("iret=ffffffff81600d50-ffffffff81600e02").unwrap().returns.len(), 1);
        assert!(parse("iret=10").unwrap_err().contains("not a range"));
        assert!(parse("iret=10-there").unwrap_err().contains("not an address"));
    }
}
