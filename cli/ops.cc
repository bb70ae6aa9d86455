// weft ops: the op table as Markdown; docs/OPS.md is its output.
#include <cstdio>

#include "cli/commands.h"
#include "cli/exit_codes.h"
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

Result<int> print_ops() {
  std::printf(
      "# The ops of weft's graphs\n\nGenerated from the op table by `./dev docs`. A peer executes these and "
      "nothing else.\n"
      "Derivative: *yes* has a vjp, *zero* passes no cotangent on, *no* stands in backward passes only.\n");
  std::optional<dag::Family> family;
  for (const dag::OpRow& row : dag::op_table().rows()) {
    if (row.about.empty()) continue;
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
  return kExitOk;
}

}  // namespace

void add_ops(CLI::App& app, Command& chosen) {
  app.add_subcommand("ops", "list the ops that graphs are made of, as Markdown")->callback([&chosen] {
    chosen = print_ops;
  });
}

}  // namespace weft::cli
