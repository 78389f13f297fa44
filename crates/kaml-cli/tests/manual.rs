//! Completions and man pages: of every command, with every flag.

mod world;

use std::fs;
use std::process::{Command, Stdio};
use world::World;

/// Every command below the given one, from the help, with its flags; the given one is the first.
fn commands(world: &World, command: &[&str], found: &mut Vec<(Vec<String>, Vec<String>)>) {
    let help = world.ok(&[command, &["--help"]].concat());
    let flags = help.lines().filter_map(|line| line.trim_start().strip_prefix('-')).filter_map(|line| {
        let long = line.split([' ', ',', '[', '=']).find(|word| word.starts_with('-') && word.len() > 2)?;
        Some(format!("--{}", long.trim_start_matches('-')))
    });
    found.push((command.iter().map(|&word| word.to_owned()).collect(), flags.collect()));
    let below = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    for name in below.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help") {
        commands(world, &[command, &[name]].concat(), found);
    }
}

fn all(world: &World) -> Vec<(Vec<String>, Vec<String>)> {
    let mut found = Vec::new();
    commands(world, &[], &mut found);
    assert!(found.len() > 30 && found.iter().map(|(_, flags)| flags.len()).sum::<usize>() > 100, "{found:?}");
    found
}

/// Goal:   each command has its page, with each of its flags and examples; hidden commands have none.
/// Method: find commands and flags from the help; where `man` is installed it reads every page without a warning.
#[test]
fn every_command_has_a_page() {
    let world = World::empty();
    world.ok(&["man", "pages/man1"]);
    let mut expected = Vec::new();
    for (command, flags) in all(&world) {
        let name = format!("{}.1", [&["kaml".to_owned()][..], &command].concat().join("-"));
        let page = fs::read_to_string(world.path(&format!("pages/man1/{name}"))).expect(&name);
        let page = page.replace("\\-", "-").replace("\\fB", "").replace("\\fR", "");
        for section in [".SH NAME", ".SH SYNOPSIS", ".SH DESCRIPTION", ".SH OPTIONS"] {
            assert!(page.contains(section), "{name} has no {section}: {page}");
        }
        for flag in flags {
            assert!(page.contains(&flag), "{name} has no {flag}: {page}");
        }
        assert!(
            page.contains(".SH EXAMPLES\n.nf\nkaml ") || command.first().is_some_and(|name| name == "namespace"),
            "{page}"
        );
        expected.push(name);
    }
    let mut written: Vec<String> = fs::read_dir(world.path("pages/man1"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    expected.sort();
    written.sort();
    assert_eq!(written, expected);
    for name in written {
        let mut man = Command::new("man");
        man.args(["--warnings", "-l", &name])
            .current_dir(world.path("pages/man1"))
            .env("LC_ALL", "C.UTF-8")
            .stdin(Stdio::null());
        if let Ok(output) = man.output() {
            assert!(
                output.status.success() && output.stderr.is_empty(),
                "{name}: {}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
    }
}

/// Goal:   the script of each shell names each command and flag; bash completes with it.
/// Method: find commands and flags from the help; call the function of the script as bash does.
#[test]
fn shells_complete_every_command() {
    let world = World::empty();
    let found = all(&world);
    for shell in ["bash", "zsh", "fish"] {
        let script = world.ok(&["completions", shell]);
        for (command, flags) in &found {
            assert!(command.last().is_none_or(|name| script.contains(&**name)), "{shell}: {command:?}");
            for flag in flags {
                let spelled = if shell == "fish" { format!("-l {}", &flag[2..]) } else { flag.clone() };
                assert!(script.contains(&spelled), "{shell}: {command:?} {flag}");
            }
        }
        assert!(!script.contains("quickstart-writer"), "{shell}: a hidden command is completed");
        fs::write(world.path(shell), script).unwrap();
    }
    let complete = |words: &str| {
        let last = words.split(' ').count() - 1;
        let call = "_kaml kaml \"${COMP_WORDS[COMP_CWORD]}\" \"${COMP_WORDS[COMP_CWORD - 1]}\"; echo ${COMPREPLY[@]}";
        let script = format!("source ./bash; COMP_WORDS=({words}); COMP_CWORD={last}; {call}");
        let output =
            Command::new("bash").args(["-c", &script]).current_dir(world.dir.path()).output().expect("bash runs");
        assert!(output.stderr.is_empty(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(complete("kaml sal"), "salvage\n");
    assert_eq!(complete("kaml create --cap"), "--capacity\n");
    let refused = world.run(&["completions", "csh"]);
    assert!(
        refused.status.code() == Some(2) && String::from_utf8_lossy(&refused.stderr).contains("'csh'"),
        "{refused:?}"
    );
}
