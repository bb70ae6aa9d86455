// A job made ready to travel: its files in pieces under names of their own, and its job file rewritten so
// that it says those names. Put together anywhere (storage::unpack) and parsed there, it is the same job.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/digest.h"
#include "base/result.h"
#include "configs/job.h"
#include "configs/yaml.h"
#include "dag/onnx/model.h"
#include "dag/onnx/roles.h"
#include "dag/recipe.h"
#include "storage/package.h"
#include "train/beginning.h"
#include "train/made_data.h"
#include "train/trainer.h"

namespace weft::train {

// A job file that was read: the job, and the tree that it was read from, every --set in it.
struct OpenedJob {
  configs::Job job;
  configs::Node tree;
  std::filesystem::path folder;  // what paths in the tree are relative to
};
// As configs::load_job.
Result<OpenedJob> open_job(const std::filesystem::path& job_file, std::span<const std::string> sets);

// Everything that can be found wrong with a job before it runs, as training it here would find it: data,
// model, loss, evaluation; but for what only the values of large weights tell. What is known then: steps,
// samples, parameters, warnings; for a prediction only samples and warnings.
Result<StartEvent> check_job(const configs::Job& job);

// By what they make.
using Recipes = std::map<Digest, dag::Recipe>;

struct SubmittedFile {
  std::string path;  // relative, of plain names: "model/resnet.onnx", "data/train/images.gz"
  std::vector<storage::Piece> pieces;
};
struct Submission {
  std::string name;                   // for people: of the job file, or of its folder where it is job.yaml
  std::string job;                    // YAML
  uint32_t stages = 0;                // 0: auto
  std::vector<std::string> excluded;  // peers by name
  std::vector<SubmittedFile> files;   // the model first, then what it keeps outside, then data
  onnx::RoleTable tensors;            // what was decided of the model's tensors
  std::map<Digest, storage::BlobSource> blobs;          // where the bytes of the pieces are
  std::vector<std::shared_ptr<const MadeFile>> made{};  // files among them that nobody else keeps
  Recipes recipes{};                                    // how tensors of the model come of published ones
};
// A submission, and what its user is told before it runs.
struct ReadyJob {
  Submission submission;
  StartEvent start;
  std::optional<Beginning> beginning{};
};
// Checks the job and makes it ready to travel. Every file is read once: a weight is hashed and looked at as
// it passes by, and no large one is held. Errors: as check_job, and what reading says; InvalidArgument for a
// job that cannot travel. With `resume`, training begins at a checkpoint (train/beginning.h).
Result<ReadyJob> ready_job(const OpenedJob& opened, const ResumeOptions& resume = {});

// The tree as YAML that is read back as the same tree, but for where things were written.
std::string to_yaml(const configs::Node& root);

}  // namespace weft::train
