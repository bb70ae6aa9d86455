// weft merge: a model with adapters merged into its weights.
#include <cstdio>

#include "cli/commands.h"
#include "cli/exit_codes.h"
#include "cli/json_event.h"
#include "cli/report.h"
#include "cli/results.h"
#include "train/adapter_files.h"

namespace weft::cli {
namespace {

struct MergeOptions {
  std::string model, folder, output;
  std::string merged;
  bool links = false;
  std::string format = "text";
};

Result<int> run_merge(const MergeOptions& options) {
  configs::OutputForm form = merged_as(options.merged);
  form.links_base = options.links;
  WEFT_TRY(const size_t count, train::merge_files(options.model, options.folder, options.output, form));
  if (options.format == "json")
    print_event(R"({"event":"result","status":"completed","adapters":)" + std::to_string(count) +
                R"(,"output":)" + json_string(options.output) + "}");
  else
    std::printf("merged %zu adapters: %s and %s\n", count, options.output.c_str(),
                onnx::inference_path(options.output).c_str());
  return kExitOk;
}

}  // namespace

void add_merge(CommandLine program, Command& chosen) {
  CommandLine command = program.subcommand("merge", "merge adapters into a model's weights");
  auto options = std::make_shared<MergeOptions>();
  command.option("model", options->model, "the ONNX file that the adapters were trained beside").required();
  command
      .option("adapters", options->folder,
              "their folder: adapter_config.json and adapter_model.safetensors, of weft or of PEFT")
      .required();
  command.option("-o,--output", options->output, "the merged model").required();
  command
      .option("--merged", options->merged,
              "the type of the weights that change; otherwise the file's, and float16 for int8 and int4")
      .one_of(merged_types());
  command.flag("--link", options->links,
               "leave external data that does not change in the model's files, which are then to stay");
  command.format(options->format);
  command.runs(chosen, [options] { return run_merge(*options); });
}

}  // namespace weft::cli
