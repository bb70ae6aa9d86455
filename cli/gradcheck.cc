// weft gradcheck: a model's gradients, as autodiff finds them, against central differences in double
// precision.
#include <fmt/format.h>

#include <array>

#include "cli/commands.h"
#include "cli/exit_codes.h"
#include "cli/gradient_check.h"
#include "cli/json_event.h"
#include "cli/report.h"
#include "dag/onnx/import.h"
#include "dag/onnx/model.h"
#include "dag/op_table.h"
#include "dag/passes/canonicalise.h"
#include "peer/backend/reference/reference_kernels.h"

namespace weft::cli {
namespace {

struct GradcheckOptions {
  std::string model;
  std::vector<std::string> freeze, sizes;
  int64_t batch = 2;
  std::string format = "text";
  GradientCheckOptions check;
};

std::string describe(const GradientFinding& finding) {
  const auto relative = [&] { return finding.scale > 0 ? finding.difference / finding.scale : 0; };
  switch (finding.verdict) {
    case GradientVerdict::Agrees:
      // Below a ten-thousandth or so the differences may see less than the tolerance asks.
      return fmt::format("relative difference {:.2e}{}", relative(),
                         finding.resolution > 1e-2 * finding.scale
                             ? fmt::format(" (differences see {:.0e})", finding.resolution / finding.scale)
                             : "");
    case GradientVerdict::AgreesWithZero:
      return fmt::format("zero: {:.1e}, where differences see {:.1e}", finding.scale, finding.resolution);
    case GradientVerdict::OnKink:
      return "on a kink: between the slopes on both sides";
    case GradientVerdict::Undecided:
      return "differences at no two steps agree";
    case GradientVerdict::Differs:
      return finding.scale > 0 ? fmt::format("relative difference {:.2e}", relative())
                               : fmt::format("zero, the differences say {:.2e}", finding.difference);
  }
  return {};
}

std::string_view mark(GradientVerdict verdict) {
  if (verdict == GradientVerdict::Differs) return "FAIL";
  return verdict == GradientVerdict::Undecided ? "??  " : "ok  ";
}

void print_finding(const GradientFinding& finding) {
  fmt::print("{} {:<48} {:<24} {}\n", mark(finding.verdict), finding.name, dag::to_string(finding.shape),
             describe(finding));
  std::fflush(stdout);
}

std::string_view word(GradientVerdict verdict) {
  switch (verdict) {
    case GradientVerdict::Agrees:
      return "agrees";
    case GradientVerdict::AgreesWithZero:
      return "agrees_with_zero";
    case GradientVerdict::OnKink:
      return "on_kink";
    case GradientVerdict::Undecided:
      return "undecided";
    case GradientVerdict::Differs:
      return "differs";
  }
  return "";
}

void print_finding_event(const GradientFinding& finding) {
  print_event(fmt::format(
      R"({{"event":"gradient","parameter":{},"shape":{},"verdict":"{}","difference":{},"scale":{}}})",
      json_string(finding.name), json_string(dag::to_string(finding.shape)), word(finding.verdict),
      json_number(finding.difference), json_number(finding.scale)));
}

int print_result_event(const GradientReport& report) {
  size_t differ = 0, undecided = 0;
  for (const GradientFinding& finding : report.findings) {
    differ += finding.verdict == GradientVerdict::Differs ? 1 : 0;
    undecided += finding.verdict == GradientVerdict::Undecided ? 1 : 0;
  }
  print_event(fmt::format(
      R"({{"event":"result","metrics":{{"loss":{}}},"gradient_norm":{},"parameters":{},"differ":{},"undecided":{}}})",
      json_number(report.loss), json_number(report.gradient_norm), report.findings.size(), differ,
      undecided));
  return differ + undecided == 0 ? kExitOk : kExitFailed;
}

int print_summary(const GradientCheckOptions& options, const GradientReport& report) {
  std::array<int, 5> counts{};
  for (const GradientFinding& finding : report.findings) ++counts[static_cast<size_t>(finding.verdict)];
  const auto count = [&](GradientVerdict verdict) { return counts[static_cast<size_t>(verdict)]; };
  const int differ = count(GradientVerdict::Differs), undecided = count(GradientVerdict::Undecided);
  const int zero = count(GradientVerdict::AgreesWithZero);
  fmt::print(
      "loss {:.6g}, gradient {:.3g}; rounding moves the loss by {:.1e}: differences over a step h see "
      "nothing "
      "below {:.1e} / h\n",
      report.loss, report.gradient_norm, report.noise, report.noise);
  fmt::print("{} parameters agree{}, {} do not{} (tolerance {:g})\n",
             static_cast<int>(report.findings.size()) - differ - undecided,
             zero != 0 ? fmt::format(" ({} as zero)", zero) : "", differ,
             undecided != 0 ? fmt::format(", {} are undecided", undecided) : "", options.tolerance);
  if (differ != 0)
    fmt::print(
        "FAIL: differences over steps of several sizes agree with each other and not with the gradient: it "
        "is "
        "no kink and no rounding. An op between that parameter and the outputs has a wrong gradient; please "
        "report the model.\n");
  if (undecided != 0)
    fmt::print(
        "??: kinks (Relu, MaxPool, rounding) lie too densely at these weights. Try --step {:g}, a smaller "
        "--batch or --size (fewer elements, fewer kinks), or weights that were trained a little.\n",
        options.step / 100);
  return differ + undecided == 0 ? kExitOk : kExitFailed;
}

Result<int> run_gradcheck(const GradcheckOptions& options) {
  WEFT_TRY(const onnx::OnnxModel model, onnx::read_model(options.model));
  onnx::ImportOptions import;
  import.evaluate = peer::evaluate_reference;
  import.batch = options.batch;
  import.training = true;
  import.freeze = options.freeze;
  WEFT_TRY(import.sizes, parse_sizes(options.sizes));
  WEFT_TRY(const onnx::ImportedModel imported, onnx::import_model(model, import, dag::op_table()));
  WEFT_TRY(const dag::Graph canonical, dag::canonicalise(imported.graph, dag::op_table()));
  const GradientCheckOptions& check = options.check;
  const bool json = options.format == "json";
  if (!json)
    fmt::print(
        "seed {}, batch {}, {} random directions a parameter, first step {:g} of its size, double "
        "precision\n",
        check.seed, options.batch, check.directions, check.step);
  WEFT_TRY(const GradientReport report, check_gradients(canonical, imported.weights, check, dag::op_table(),
                                                        json ? print_finding_event : print_finding));
  return json ? print_result_event(report) : print_summary(check, report);
}

}  // namespace

void add_gradcheck(CommandLine program, Command& chosen) {
  CommandLine command = program.subcommand(
      "gradcheck", "compare a model's gradients with central differences in double precision");
  auto options = std::make_shared<GradcheckOptions>();
  command.option("model", options->model, "the ONNX file").required();
  command
      .option("--freeze", options->freeze, "initializers that are not trained (pattern; may be given again)")
      .one_value_each();
  command.option("--size", options->sizes, "a symbolic dim: name=number (may be given again)")
      .one_value_each();
  command.option("--batch", options->batch, "samples, where the first axis is symbolic")
      .within(1, 4096)
      .shows_default();
  command.option("--seed", options->check.seed, "of inputs and directions").shows_default();
  command.option("--directions", options->check.directions, "random directions a parameter")
      .within(1, 1000)
      .shows_default();
  command
      .option("--tolerance", options->check.tolerance,
              "largest difference from a gradient, relative to its size")
      .shows_default();
  command.option("--step", options->check.step, "first step, relative to the parameter's size")
      .within(1e-12, 1e-2)
      .shows_default();
  command.format(options->format);
  command.runs(chosen, [options] { return run_gradcheck(*options); });
}

}  // namespace weft::cli
