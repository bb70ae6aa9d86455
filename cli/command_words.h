// The command definitions as values. The man page, the shell completions and docs/CLI.md are made from them.
#pragma once

#include <string>
#include <vector>

namespace weft::cli {

struct OptionWords {
  std::vector<std::string> names;    // "-o", "--output"; of a positional argument its one name
  std::string value;                 // what follows: "TEXT", "N"; empty: a flag
  std::vector<std::string> choices;  // the only values there are; empty: any
  std::string what;
  std::string initial;  // the value where none is given; empty: none, or `what` says it
  bool required = false;
  bool positional = false;
};

struct CommandWords {
  std::string name, what;
  std::string group;  // the heading under which its parent lists it; empty: not listed
  std::vector<OptionWords> options;
  std::vector<CommandWords> commands;
};

}  // namespace weft::cli
