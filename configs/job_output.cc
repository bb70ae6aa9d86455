// Where what a job makes is written, and how: `output`.
#include "configs/job_sections.h"

namespace weft::configs {
namespace {

void read_form(MapReader& reader, const Node& node, Job& job) {
  enum class Base : uint8_t { Copy, Link };
  static constexpr Choice<Base> kBases[] = {{"copy", Base::Copy}, {"link", Base::Link}};
  const auto base = reader.choice(reader.take("base"), "base", kBases);
  job.output_form.links_base = base == Base::Link;
  static constexpr Choice<dag::DType> kTypes[] = {
      {"float32", dag::DType::F32}, {"float16", dag::DType::F16}, {"bfloat16", dag::DType::BF16}};
  if (const Node* merged = reader.take("merged")) {
    job.output_form.merged = reader.choice(merged, "merged", kTypes);
    if (job.adapters.empty())
      reader.problem(merged->where,
                     "`output.merged` is of weights that adapters are merged into: it goes "
                     "with `adapters`");
  }
  if (!job.output_form.links_base) return;
  if (job.init)
    reader.problem(node.where,
                   "`output.base: link` leaves what is not trained in the model's files, and `init` "
                   "gives it other values; say `base: copy`");
  const BaseStore store = job.base.store;
  if (store != BaseStore::AsIs && store != BaseStore::Float32)
    reader.problem(node.where,
                   "`output.base: link` leaves what is not trained in the model's files, and "
                   "`base.store` rounds it; say `base: copy`");
}

}  // namespace

void read_output(MapReader& root, const PathRules& rules, Problems& problems, Job& job) {
  const bool predict = job.task == Task::Predict;
  const Node* node = predict ? root.require("output", "name the npz file to write") : root.take("output");
  std::optional<std::string> text = "trained.onnx";
  if (node && node->kind == Node::Kind::Map && !predict) {
    MapReader reader(*node, "output", problems);
    text = reader.text("path", "trained.onnx");
    read_form(reader, *node, job);
    reader.finish();
  } else if (node) {
    text = root.parse_text(*node, "output");
  }
  if (!text) return;
  job.output = rules.resolve(*text, node ? node->where : Location{});
  const auto folder = job.output.has_parent_path() ? job.output.parent_path() : std::filesystem::path(".");
  std::error_code code;
  if (rules.check_files && !std::filesystem::is_directory(folder, code))
    root.problem(node ? node->where : root.where(),
                 "`output`: there is no folder " + folder.string() + "; make it first", ErrorCode::NotFound);
}

}  // namespace weft::configs
