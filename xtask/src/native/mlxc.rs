//! libmlxc, the C interface that the bindings call: compiled from mlx-c's sources and linked to the prebuilt MLX.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::failure::{Context, Failure, Result, fail};
use crate::progress::Progress;
use crate::project::write_if_changed;
use crate::tools::{capture, file_names};

/// One file per core of the smallest machine; more would parse MLX's headers again for each.
const UNITS: usize = 2;

/// What one build of the library reads and where it writes.
pub(super) struct Build<'a> {
    pub(super) compiler: String,
    /// The folder that holds `mlx/c/*.cpp`.
    pub(super) mlx_c: &'a Path,
    /// The folder of `shim.h` and `gaps.cpp`.
    pub(super) sources: &'a Path,
    /// Where pip installed MLX and OpenBLAS.
    pub(super) site: &'a Path,
    /// A folder for intermediate files.
    pub(super) work: &'a Path,
}

impl Build<'_> {
    pub(super) fn run(&self) -> Result {
        let progress = Progress::start("compiling the C interface of MLX", UNITS + 1);
        let units = self.write_units()?;
        let running = units.iter().map(|unit| self.start(unit)).collect::<Result<Vec<_>>>();
        for (child, unit) in running?.into_iter().zip(&units) {
            finish(child, unit)?;
            progress.step();
        }
        capture(&mut self.link(&units), "linking libmlxc.so")?;
        progress.step();
        progress.done();
        Ok(())
    }

    /// Each unit includes every second source, which is faster than 26 compilations.
    fn write_units(&self) -> Result<Vec<PathBuf>> {
        let folder = self.mlx_c.join("mlx/c");
        let mut texts = vec![String::new(); UNITS];
        let sources = file_names(&folder)?.into_iter().filter(|name| name.ends_with(".cpp"));
        for (i, name) in sources.enumerate() {
            texts[i % UNITS].push_str(&format!("#include \"{}\"\n", folder.join(name).display()));
        }
        let mut units = Vec::new();
        for (i, text) in texts.iter().enumerate() {
            let unit = self.work.join(format!("u{i}.cpp"));
            write_if_changed(&unit, text.as_bytes())?;
            units.push(unit);
        }
        Ok(units)
    }

    fn start(&self, unit: &Path) -> Result<Child> {
        let mut command = self.compile(unit);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command.spawn().context(|| format!("starting {}", self.compiler))
    }

    fn compile(&self, unit: &Path) -> Command {
        let mut command = Command::new(&self.compiler);
        command.args(["-std=c++20", "-O2", "-DNDEBUG", "-fPIC", "-include"]).arg(self.sources.join("shim.h"));
        command.arg("-I").arg(self.mlx_c).arg("-isystem").arg(self.site.join("mlx/include"));
        // Error messages name their source file; the path of this machine has no place in them.
        command.arg(format!("-ffile-prefix-map={}/=", self.mlx_c.display()));
        command.arg("-c").arg(unit).arg("-o").arg(unit.with_extension("o"));
        command
    }

    fn link(&self, units: &[PathBuf]) -> Command {
        let mut command = Command::new(&self.compiler);
        command.args(["-O2", "-fPIC", "-shared", "-Wl,-soname,libmlxc.so", "-Wl,-z,defs", "-o"]);
        command.arg(self.site.join("mlx/lib/libmlxc.so"));
        command.args(units.iter().map(|unit| unit.with_extension("o"))).arg(self.sources.join("gaps.cpp"));
        command.arg("-L").arg(self.site.join("mlx/lib")).arg("-lmlx");
        command.arg("-L").arg(self.site.join("scipy_openblas32/lib")).arg("-lscipy_openblas");
        command.arg("-Wl,-rpath,$ORIGIN:$ORIGIN/../../scipy_openblas32/lib");
        command
    }
}

fn finish(child: Child, unit: &Path) -> Result {
    let output = child.wait_with_output().map_err(|error| Failure(error.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    fail(format!("{}\ncompiling {} failed", String::from_utf8_lossy(&output.stderr), unit.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::project::scratch;

    fn text(command: &Command) -> String {
        command.get_args().map(|arg| arg.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn sources_are_dealt_out_in_turn() {
        let folder = scratch("units");
        for name in ["b.cpp", "a.cpp", "c.cpp", "a.h"] {
            write_if_changed(&folder.join("mlx-c/mlx/c").join(name), b"").unwrap();
        }
        let (mlx_c, work) = (folder.join("mlx-c"), folder.join("work"));
        let build =
            Build { compiler: "c++".into(), mlx_c: &mlx_c, sources: &folder, site: &folder, work: &work };
        let units = build.write_units().unwrap();
        let of = |i: usize| std::fs::read_to_string(&units[i]).unwrap();
        assert!(of(0).contains("a.cpp") && of(0).contains("c.cpp") && !of(0).contains("a.h"));
        assert_eq!(of(1).lines().count(), 1);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn the_library_finds_its_neighbours_from_its_own_place() {
        let (m, s, n, w) = (Path::new("M"), Path::new("S"), Path::new("N"), Path::new("W"));
        let build = Build { compiler: "c++".into(), mlx_c: m, sources: n, site: s, work: w };
        let link = text(&build.link(&[PathBuf::from("W/u0.cpp"), PathBuf::from("W/u1.cpp")]));
        assert!(link.contains("-o S/mlx/lib/libmlxc.so W/u0.o W/u1.o N/gaps.cpp"), "{link}");
        assert!(link.ends_with("-Wl,-rpath,$ORIGIN:$ORIGIN/../../scipy_openblas32/lib"), "{link}");
        let compile = text(&build.compile(Path::new("W/u0.cpp")));
        assert!(
            compile.contains("-include N/shim.h -I M -isystem S/mlx/include -ffile-prefix-map=M/="),
            "{compile}"
        );
        assert!(compile.ends_with("-c W/u0.cpp -o W/u0.o"), "{compile}");
    }
}
