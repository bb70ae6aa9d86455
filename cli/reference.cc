// weft reference: what all commands take, in one document.
#include "cli/reference.h"

#include <fmt/format.h>

#include <cctype>
#include <functional>
#include <sstream>

#include "cli/commands.h"
#include "cli/exit_codes.h"

namespace weft::cli {

std::string joined(const std::vector<std::string>& parts, const char* between) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : between) + part;
  return text;
}

namespace {

constexpr size_t kLineMax = 110;

std::string upper(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

// "train a job" as a sentence.
std::string sentence(std::string text) {
  if (!text.empty()) text.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(text.front())));
  return text + ".";
}

// A line that is too long goes on in the next, two columns further in.
std::string wrapped(const std::string& text) {
  std::string out;
  size_t column = 0;
  std::istringstream words(text);
  for (std::string word; words >> word; column += word.size()) {
    if (column > 0 && column + 1 + word.size() > kLineMax) {
      out += "\n  ";
      column = 2;
    } else if (column > 0) {
      out += ' ';
      ++column;
    }
    out += word;
  }
  return out + "\n";
}

// "JOB", "-o, --output TEXT", "--format text|json"
std::string form(const OptionWords& option) {
  if (option.positional) return upper(option.names.front());
  std::string text = joined(option.names, ", ");
  if (!option.choices.empty()) return text + " " + joined(option.choices, "|");
  return option.value.empty() ? text : text + " " + option.value;
}

std::string meaning(const OptionWords& option) {
  std::string text = option.what;
  if (!option.initial.empty()) text += (text.empty() ? "default: " : "; default: ") + option.initial;
  if (option.required && !option.positional) text += " (required)";
  return text;
}

// "weft submit JOB [OPTION...]", "weft token COMMAND"
std::string usage(const CommandWords& command, const std::string& path) {
  std::string text = path;
  for (const OptionWords& option : command.options) {
    if (option.positional) text += option.required ? " " + form(option) : " [" + form(option) + "]";
    if (!option.positional && option.required) text += " " + option.names.back() + " " + option.value;
  }
  return text + " [OPTION...]";
}

// Groups in the order in which they are met, each with its commands.
using Visit = std::function<void(const CommandWords& command, const std::string& path)>;
void each_command(const CommandWords& parent, const std::string& path, const Visit& visit) {
  for (const CommandWords& command : parent.commands) {
    const std::string own = path + " " + command.name;
    visit(command, own);
    each_command(command, own, visit);
  }
}

std::vector<CommandWords> by_group(const CommandWords& program) {
  std::vector<CommandWords> groups;
  for (const CommandWords& command : program.commands) {
    size_t at = 0;
    while (at < groups.size() && groups[at].name != command.group) ++at;
    if (at == groups.size()) groups.push_back({command.group, "", "", {}, {}});
    groups[at].commands.push_back(command);
  }
  return groups;
}

bool is_help(const OptionWords& option) { return option.names.back() == "--help"; }

}  // namespace

std::string as_markdown(const CommandWords& program) {
  std::string out =
      "# The commands of weft\n\n"
      "`weft reference --format markdown` prints this page from the definitions of the commands; `./dev "
      "docs`\n"
      "writes it anew. Every command takes `--help`.\n";
  for (const CommandWords& group : by_group(program)) {
    out += "\n## " + group.name + "\n";
    each_command(group, "weft", [&out](const CommandWords& command, const std::string& path) {
      out +=
          "\n### " + path + "\n\n" + wrapped(sentence(command.what)) + "\n    " + usage(command, path) + "\n";
      if (command.options.size() > 1) out += "\n";
      for (const OptionWords& option : command.options)
        if (!is_help(option)) out += wrapped("- `" + form(option) + "`: " + meaning(option));
    });
  }
  out += "\n## Exit codes\n\n| code | meaning |\n|---|---|\n";
  for (const ExitMeaning& one : kExitMeanings) out += fmt::format("| {} | {} |\n", one.code, one.words);
  return out;
}

namespace {

// In a manual page a backslash and a leading dot or quote are orders, and a hyphen is set as a dash.
std::string troff(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\') {
      out += "\\e";
    } else {
      out += c == '-' ? "\\-" : c == '\'' && out.empty() ? "\\(aq" : std::string(1, c);
    }
  }
  return out.starts_with('.') ? "\\&" + out : out;
}

std::string man_options(const CommandWords& command) {
  std::string out;
  for (const OptionWords& option : command.options)
    if (!is_help(option)) out += ".TP\n.B " + troff(form(option)) + "\n" + troff(meaning(option)) + "\n";
  return out;
}

constexpr const char* kManEnd =
    ".SH ENVIRONMENT\n"
    ".TP\n.B WEFT_BROKER, WEFT_TOKEN\nThe broker, HOST:PORT, and a token for it, where no option names "
    "them.\n"
    ".TP\n.B WEFT_MODULES\nFolders with backends that are libraries of their own, colon by colon.\n"
    ".SH FILES\n"
    ".TP\n.I ~/.config/weft/login.json\nThe broker and the token that\n.B weft login\nkeeps.\n"
    ".TP\n.I ~/.local/share/weft\nThe data of a broker or a peer of this user.\n"
    ".TP\n.I /var/lib/weft\\-broker\nThe data of the broker that systemd runs.\n";

}  // namespace

std::string as_man_page(const CommandWords& program, const std::string& version) {
  std::string out = ".TH WEFT 1 \"\" \"weft " + troff(version) +
                    "\" \"User Commands\"\n"
                    ".SH NAME\nweft \\- train one neural network on many people's machines\n"
                    ".SH SYNOPSIS\n.B weft\n.I COMMAND\n[\\fIARGUMENT\\fR...] [\\fIOPTION\\fR...]\n"
                    ".SH DESCRIPTION\n" +
                    troff(sentence(program.what)) + "\nEvery command takes\n.BR \\-\\-help .\n";
  for (const CommandWords& group : by_group(program)) {
    out += ".SH " + troff(upper(group.name)) + "\n";
    each_command(group, "weft", [&out](const CommandWords& command, const std::string& path) {
      out += ".SS " + troff(usage(command, path)) + "\n" + troff(sentence(command.what)) + "\n" +
             man_options(command);
    });
  }
  out += ".SH EXIT STATUS\n";
  for (const ExitMeaning& one : kExitMeanings)
    out += ".TP\n.B " + std::to_string(one.code) + "\n" + troff(one.words) + "\n";
  return out + kManEnd;
}

void add_reference(CommandLine program, Command& chosen) {
  CommandLine command = program.subcommand("reference", "print what all commands take");
  command.hide();
  auto format = std::make_shared<std::string>("markdown");
  command.option("--format", *format, "of the document, or for a shell to load")
      .one_of({"markdown", "man", "bash", "zsh", "fish"})
      .shows_default();
  command.runs(chosen, [program, format]() -> Result<int> {
    const CommandWords words = program.words();
    const std::string text = *format == "man"    ? as_man_page(words, WEFT_VERSION)
                             : *format == "bash" ? bash_completion(words)
                             : *format == "zsh"  ? zsh_completion(words)
                             : *format == "fish" ? fish_completion(words)
                                                 : as_markdown(words);
    fmt::print("{}", text);
    return kExitOk;
  });
}

}  // namespace weft::cli
