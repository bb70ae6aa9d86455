// What shells complete: commands, their options, and the values of options that have a list of them.
#include <functional>

#include "cli/reference.h"

namespace weft::cli {
namespace {

// Each command by its words: {"token", "create"}; the program itself by none.
using Path = std::vector<std::string>;
void each(const CommandWords& command, const Path& path,
          const std::function<void(const CommandWords&, const Path&)>& visit) {
  visit(command, path);
  for (const CommandWords& sub : command.commands) {
    Path own = path;
    own.push_back(sub.name);
    each(sub, own, visit);
  }
}

std::vector<std::string> names_of(const std::vector<CommandWords>& commands) {
  std::vector<std::string> names;
  names.reserve(commands.size());
  for (const CommandWords& command : commands) names.push_back(command.name);
  return names;
}

// For a shell, in single quotes.
std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? "'\\''" : std::string(1, c);
  return out + "'";
}

bool is_option(const OptionWords& option) { return !option.positional; }

// A short text beside a completion: up to the first semicolon or colon.
std::string brief(const std::string& text) { return text.substr(0, text.find_first_of(";:")); }

std::string bash_case(const CommandWords& command, const Path& path) {
  std::vector<std::string> words = names_of(command.commands);
  for (const OptionWords& option : command.options)
    if (is_option(option)) words.insert(words.end(), option.names.begin(), option.names.end());
  return "    " + quoted(joined(path, " ")) + ") words=" + quoted(joined(words, " ")) +
         (command.commands.empty() ? " files=1" : "") + " ;;\n";
}

// The choices of an option, and nothing but files after one that takes any value.
std::string bash_values(const CommandWords& command, const Path& path) {
  std::string out;
  for (const OptionWords& option : command.options) {
    if (!is_option(option) || option.value.empty()) continue;
    std::vector<std::string> patterns;
    patterns.reserve(option.names.size());
    for (const std::string& name : option.names) patterns.push_back(quoted(joined(path, " ") + " " + name));
    out += "    " + joined(patterns, "|") + ") values=" + quoted(joined(option.choices, " ")) +
           (option.choices.empty() ? " files=1" : "") + " ;;\n";
  }
  return out;
}

}  // namespace

std::string bash_completion(const CommandWords& program) {
  std::string words, values, commands;
  each(program, {}, [&](const CommandWords& command, const Path& path) {
    words += bash_case(command, path);
    values += bash_values(command, path);
    if (!path.empty()) commands += "      " + quoted(joined(path, " ")) + ") path=$longer ;;\n";
  });
  return "# weft's completions for bash, made by `weft reference --format bash`.\n"
         "_weft() {\n"
         "  local current=${COMP_WORDS[COMP_CWORD]} path='' longer words='' values='' files='' i\n"
         "  COMPREPLY=()\n"
         "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
         "    longer=\"${path:+$path }${COMP_WORDS[i]}\"\n"
         "    case $longer in\n" +
         commands +
         "    esac\n"
         "  done\n"
         "  case \"$path ${COMP_WORDS[COMP_CWORD-1]}\" in\n" +
         values +
         "  esac\n"
         "  if [[ $files ]]; then COMPREPLY=($(compgen -f -- \"$current\")); return; fi\n"
         "  if [[ $values ]]; then COMPREPLY=($(compgen -W \"$values\" -- \"$current\")); return; fi\n"
         "  case $path in\n" +
         words +
         "  esac\n"
         "  COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
         "  [[ $files && $current != -* ]] && COMPREPLY+=($(compgen -f -- \"$current\"))\n"
         "}\n"
         "complete -o filenames -F _weft weft\n";
}

namespace {

// In a specification of zsh's _arguments, what stands in brackets.
std::string zsh_text(const std::string& text) {
  std::string out;
  for (const char c : brief(text))
    out += c == '[' || c == ']' || c == '\\' ? std::string{'\\', c} : std::string(1, c);
  return out;
}

std::string zsh_value(const OptionWords& option) {
  if (option.value.empty()) return "";
  return option.choices.empty() ? ":value:_files" : ":value:(" + joined(option.choices, " ") + ")";
}

std::string zsh_arguments(const CommandWords& command) {
  std::string out;
  for (const OptionWords& option : command.options) {
    if (!is_option(option)) continue;
    for (const std::string& name : option.names)
      out += " \\\n    " + quoted("*" + name + "[" + zsh_text(option.what) + "]" + zsh_value(option));
  }
  return out;
}

std::string zsh_function(const CommandWords& command, const Path& path) {
  const std::string name = "_weft" + (path.empty() ? "" : "_" + joined(path, "_"));
  std::string out = quoted(name) + "() {\n";
  if (command.commands.empty())
    return out + "  _arguments" + zsh_arguments(command) + " '*:file:_files'\n}\n";
  out += "  local context state line\n  typeset -A opt_args\n  _arguments -C" + zsh_arguments(command) +
         " '1: :->command' '*:: :->rest'\n  case $state in\n  command)\n    local -a commands=(\n";
  for (const CommandWords& sub : command.commands)
    out += "      " + quoted(sub.name + ":" + brief(sub.what)) + "\n";
  out += "    )\n    _describe command commands ;;\n  rest)\n    case $line[1] in\n";
  for (const CommandWords& sub : command.commands)
    out += "    " + sub.name + ") " + quoted(name + "_" + sub.name) + " ;;\n";
  return out + "    esac ;;\n  esac\n}\n";
}

}  // namespace

std::string zsh_completion(const CommandWords& program) {
  std::string functions;
  each(program, {}, [&functions](const CommandWords& command, const Path& path) {
    functions += zsh_function(command, path);
  });
  return "#compdef weft\n# weft's completions for zsh, made by `weft reference --format zsh`.\n" + functions +
         "_weft \"$@\"\n";
}

namespace {

// When a command's options are offered: all of its words were given, and none of its subcommands'.
std::string fish_condition(const CommandWords& command, const Path& path) {
  if (path.empty()) return "__fish_use_subcommand";
  std::string condition;
  for (const std::string& word : path)
    condition += (condition.empty() ? "" : "; and ") + ("__fish_seen_subcommand_from " + word);
  if (command.commands.empty()) return condition;
  return condition + "; and not __fish_seen_subcommand_from " + joined(names_of(command.commands), " ");
}

std::string fish_option(const OptionWords& option) {
  std::string out;
  for (const std::string& name : option.names)
    out += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
  if (!option.value.empty()) out += " -r";
  if (!option.choices.empty()) out += " -f -a " + quoted(joined(option.choices, " "));
  return out + " -d " + quoted(brief(option.what));
}

}  // namespace

std::string fish_completion(const CommandWords& program) {
  std::string out = "# weft's completions for fish, made by `weft reference --format fish`.\n";
  each(program, {}, [&out](const CommandWords& command, const Path& path) {
    const std::string begin = "complete -c weft -n " + quoted(fish_condition(command, path));
    for (const CommandWords& sub : command.commands)
      out += begin + " -f -a " + sub.name + " -d " + quoted(brief(sub.what)) + "\n";
    for (const OptionWords& option : command.options)
      if (is_option(option)) out += begin + fish_option(option) + "\n";
  });
  return out;
}

}  // namespace weft::cli
