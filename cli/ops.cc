// weft ops: the op table as Markdown; docs/OPS.md is its output.
#include <fmt/format.h>

#include <cstdio>

#include "cli/commands.h"
#include "cli/exit_codes.h"
#include "cli/json_event.h"
#include "cli/markdown.h"
#include "cli/report.h"
#include "dag/onnx/import.h"
#include "dag/op_table.h"

namespace weft::cli {
namespace {

const char* derivative(dag::Differentiability kind) {
  switch (kind) {
    case dag::Differentiability::Differentiable:
      return "yes";
    case dag::Differentiability::Zero:
      return "zero";
    case dag::Differentiability::Refused:
      return "no";
  }
  return "";
}

std::string list(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : " ") + name;
  return text;
}

// What the import makes these ops of, and what it refuses.
void print_operators() {
  const auto print = [](const std::string& text) { std::printf("\n%s", wrapped_paragraph(text).c_str()); };
  std::printf("\n## ONNX operators that are imported\n");
  print(
      "Opset 6 to 26, in every form that those define unless a node is refused by name; a newer file is "
      "taken "
      "with a warning.");
  print(list(onnx::imported_operators("")));
  print("Of the domain com.microsoft: " + list(onnx::imported_operators("com.microsoft")));
  print(
      "Functions of a model's own domains are inlined; If, Loop and Scan are written out as far as the "
      "import "
      "knows how often they run.");
  std::printf("\n## Refused, and why\n\n| what | why |\n|---|---|\n");
  for (const auto& [names, reason] : onnx::refused_operators())
    std::printf("| %s | %s |\n", std::string(names).c_str(), std::string(reason).c_str());
  const std::pair<const char*, const char*> kinds[] = {
      {"tensors of fp8, fp4, int2, strings, complex numbers; int4 and uint4 but as stored weights",
       "no dtype of a graph; dequantise or cast in the exporter"},
      {"sequences, maps, optionals and sparse tensors as inputs or outputs of a model",
       "data and results are dense tensors"},
      {"NonZero, Unique, Compress, NonMaxSuppression of values that depend on data",
       "the result's shape would depend on data, and every shape is fixed at import"},
      {"Reshape, Slice, Range, Tile, TopK and others whose sizes depend on data", "as above"},
      {"a Loop whose count, a Scan whose length is not known at import or beyond 50,000 nodes written out "
       "(10,000 where each iteration decides whether there is another)",
       "there are no loops in a graph"},
      {"recurrent cells with clips, peepholes or other activations beyond 2,048 gate steps",
       "they are written out step by step"},
  };
  for (const auto& [what, why] : kinds) std::printf("| %s | %s |\n", what, why);
}

Result<int> print_ops() {
  std::printf(
      "# The ops of weft's graphs\n\n%s",
      wrapped_paragraph(
          "This page is made from the op table by `./dev docs`. A peer executes these ops and nothing "
          "else. Derivative: *yes* has a vjp, *zero* passes no cotangent on, *no* stands in backward "
          "passes only.")
          .c_str());
  std::optional<dag::Family> family;
  for (const dag::OpRow& row : dag::op_table().rows()) {
    if (row.family != family) {
      family = row.family;
      std::printf("\n## %s\n\n| op | operands | derivative | meaning |\n|---|---|---|---|\n",
                  std::string(to_string(*family)).c_str());
    }
    std::string about(row.about);
    for (size_t at = 0; (at = about.find('|', at)) != std::string::npos; at += 2) about.replace(at, 1, "\\|");
    std::printf("| %s | %s | %s | %s |\n", std::string(to_string(row.kind)).c_str(),
                row.inputs_min == row.inputs_max ? std::to_string(row.inputs_min).c_str()
                : row.inputs_max > 100
                    ? (std::to_string(row.inputs_min) + " or more").c_str()
                    : (std::to_string(row.inputs_min) + " to " + std::to_string(row.inputs_max)).c_str(),
                derivative(row.differentiability), about.c_str());
  }
  print_operators();
  return kExitOk;
}

Result<int> print_op_events() {
  for (const dag::OpRow& row : dag::op_table().rows())
    print_event(fmt::format(
        R"({{"event":"op","op":"{}","family":{},"operands_min":{},"operands_max":{},"derivative":"{}","meaning":{}}})",
        to_string(row.kind), json_string(to_string(row.family)), row.inputs_min, row.inputs_max,
        derivative(row.differentiability), json_string(row.about)));
  for (const char* domain : {"", "com.microsoft"})
    for (const std::string& name : onnx::imported_operators(domain))
      print_event(
          fmt::format(R"({{"event":"operator","domain":"{}","operator":{}}})", domain, json_string(name)));
  return kExitOk;
}

}  // namespace

void add_ops(CommandLine program, Command& chosen) {
  CommandLine command = program.subcommand("ops", "list the ops that graphs are made of, as Markdown");
  auto format = std::make_shared<std::string>("text");
  command.format(*format);
  command.runs(chosen, [format] { return *format == "json" ? print_op_events() : print_ops(); });
}

}  // namespace weft::cli
