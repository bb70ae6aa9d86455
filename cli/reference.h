// The command definitions as documents: docs/CLI.md and the manual page weft(1); as scripts: completions.
#pragma once

#include <string>
#include <vector>

#include "cli/command_words.h"

namespace weft::cli {

std::string joined(const std::vector<std::string>& parts, const char* between);

std::string as_markdown(const CommandWords& program);
std::string as_man_page(const CommandWords& program, const std::string& version);

// What a shell loads to complete the commands, options and choices of `weft`.
std::string bash_completion(const CommandWords& program);
std::string zsh_completion(const CommandWords& program);
std::string fish_completion(const CommandWords& program);

}  // namespace weft::cli
