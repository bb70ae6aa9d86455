// The job file: what a user submits, as plain values, checked. docs and examples/ show the YAML.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "configs/yaml.h"
#include "dag/adapter_terms.h"
#include "dag/arithmetic.h"
#include "dag/loss.h"
#include "dag/training.h"
#include "data/data_spec.h"
#include "plan/compression.h"
#include "plan/draft_kind.h"
#include "plan/equal_bits.h"
#include "plan/pin.h"
#include "plan/serving.h"
#include "replicas/terms.h"

namespace weft::configs {

enum class Task : uint8_t { Train, Predict, Serve };

// Who guesses tokens ahead where a model is served.
struct DraftTerms {
  plan::DraftKind kind = plan::DraftKind::None;
  double right = 0;              // of Coin: the part of its guesses that are right
  std::filesystem::path file{};  // of Decoder
};

// Where the model's first weights come from, when that is not its own file.
struct InitTerms {
  std::filesystem::path file{};  // safetensors, GGUF, or the index of several
  // Pattern and replacement (configs/rename.h), one after the other: a tensor's name becomes an
  // initializer's.
  std::vector<std::pair<std::string, std::string>> rename{};
  std::vector<std::string> transpose{};  // globs over initializers: matrices that lie transposed in the file
  std::vector<std::string> ignore{};     // globs over tensors, as the file names them: not taken
  std::vector<std::string> keep{};       // globs over initializers: they keep the model's own values
  bool partial = false;                  // what else is left over, or is missing, is no error
};

// How the factors of an adapter begin. The second one is zero but for a table's, whose first one is.
enum class AdapterBegin : uint8_t {
  Kaiming,  // uniform in +-1/sqrt(in), as PyTorch's Linear; of a table normal with deviation 1
  Normal,   // with deviation 1/rank
  Zero,     // both: they learn nothing
  File,
};
// An entry of `adapters`, of type lora.
struct AdapterEntry : dag::AdapterTerms {
  std::string path;  // of it in the job file: "adapters", or "adapters[0]" of a list
  size_t index = 0;  // in that list
  AdapterBegin begin = AdapterBegin::Kaiming;
  std::filesystem::path file{};  // of AdapterBegin::File: safetensors
  // Pattern and replacement (configs/rename.h): a module's name as the adapter's file is to have it.
  std::vector<std::pair<std::string, std::string>> names{};
};

// Of a job that serves its model.
struct ServeTerms {
  std::optional<uint64_t> model_of{};  // "job:3": the model is what that job has learnt
  std::string name{};                  // that requests ask for
  std::filesystem::path tokenizer{};   // empty: what lies beside the model, else bytes
  std::string chat_template{};         // by name; empty: what lies beside the tokenizer says
  uint64_t context = 0;                // positions, where the file leaves them open; 0: 1024
  uint32_t sequences_max = 64;         // at once
  uint32_t rows_max = 64;              // positions of a pass
  plan::ServeObjective objective = plan::ServeObjective::Latency;
  DraftTerms draft{};
};

// What an input is for every sample alike, as {value: 16000}: a number, or lists of them, row by row.
struct InputValue {
  dag::Shape shape;  // of the lists; of a number none
  std::vector<double> numbers;
};

// How it is to be cut and placed: `placement`.
struct PlacementTerms {
  std::optional<uint32_t> stages{};  // nothing: auto
  plan::EqualBits equal_bits = plan::EqualBits::Prefer;
  std::string strategy = "auto";       // of plan/strategy.h
  std::vector<std::string> exclude{};  // peers that get no part of it
  std::vector<plan::PinRule> pins{};   // of no excluded peer
  double owner_share_max = 1;          // of the parameters, on one owner's machines
};

// What the planner chooses of the replicas, by who is there.
struct ReplicaChoice {
  uint32_t count_max = 0;                 // how many there are: from the job's count on; 0: just those
  uint64_t every_max = 0;                 // steps of a round: from the job's `every` on; 0: just those
  std::vector<compress::Codec> codecs{};  // one of these, the gentlest first; none: the job's
  bool shares = false;                    // of a round, where the job names none
  // `optimizer_state: shared`, of replicas that add each step's gradients: a parameter's owner alone has the
  // optimizer's slots of it. Changes no bit.
  bool shares_slots = false;
};

// How matrices that nobody trains lie in memory, on the wire and on disk: `base`. Every way computes in
// float32.
enum class BaseStore : uint8_t {
  Float32,
  AsIs,  // as the model's file has them
  BF16,
  Int8,
  Int4
};
struct BaseTerms {
  BaseStore store = BaseStore::AsIs;
  int64_t block = 128;  // numbers that share a scale, of Int8 and Int4
  // Whether that makes another model of what the file has.
  bool rounds() const { return store != BaseStore::Float32 && store != BaseStore::AsIs; }
};

// Which tensors are trained, and what beside them; of Task::Train.
struct WhatIsTrained {
  // Glob patterns over initializer names: `train` and `freeze` (onnx::judge_roles). With adapters everything
  // is frozen but what entries of type full name: these are `trained` and `spared`, in the order of the file.
  std::vector<std::string> trained, freeze, spared;
  std::vector<AdapterEntry> adapters;
  BaseTerms base;
};

// How the trained file is written: `output.base` and `output.merged`.
struct OutputForm {
  bool links_base = false;             // data that was not trained stays in the model's external files
  std::optional<dag::DType> merged{};  // of weights that adapters were merged into; F32, F16 or BF16
};

// Its terms of training, its borders and what is trained are members like the others.
struct Job : dag::TrainingTerms, dag::Borders, WhatIsTrained {
  std::string source;             // the file's name, for messages
  bool from_options = false;      // it was made of a command's options: messages speak of them, not of keys
  std::filesystem::path model;    // empty where `serve` names a job
  std::optional<InitTerms> init;  // not of Task::Serve
  Task task = Task::Train;
  std::map<std::string, std::string> inputs;       // graph input <- data column
  std::map<std::string, InputValue> input_values;  // graph input <- its value; none of `inputs`
  std::map<std::string, int64_t> sizes;            // of the model's symbolic dims, where options say them
  std::vector<dag::LossSpec> losses;               // the terms of the loss; of Task::Train alone
  std::optional<data::DataSpec> train;             // set for Task::Train
  // The data of `test`, or the part that a text's `validation` keeps from training.
  std::optional<data::DataSpec> test;
  std::optional<data::DataSpec> predict;  // set for Task::Predict
  std::optional<ServeTerms> serve;        // set for Task::Serve
  std::optional<uint64_t> steps;          // for Task::Train exactly one of these is set
  std::optional<uint64_t> epochs;
  bool shuffle = true;
  std::filesystem::path output;
  OutputForm output_form;
  PlacementTerms placement;
  replicas::ReplicaTerms replicas;  // of as many as there are at least; `weft local` computes these
  ReplicaChoice replica_choice;
  plan::Compression compression;
  dag::Arithmetic arithmetic = dag::Arithmetic::F32;  // `precision`; not every device has each

  // Where each key's value was written, by dotted path ("optimizer.type"; an input's name may hold dots
  // itself); the items of a list as "freeze[0]".
  std::map<std::string, Location, std::less<>> locations;

  // Ascending: what `auto` may become. Of all that divide the batch so that gradient_ranges divides the
  // microbatches a few, each about twice the one before; the last is the whole batch, or its largest range.
  std::vector<uint32_t> microbatch_sizes() const;
  // Whether replicas come and go with the machines that are there.
  bool may_grow() const { return replica_choice.count_max > replicas.count; }
  // Whether a step may be made of samples that count for nothing in the loss, as far as this file tells.
  bool may_have_empty_steps() const;
  Job with_microbatch_size(uint32_t size) const;
  bool leaves_rounds_open() const { return replica_choice.every_max > 0 || !replica_choice.codecs.empty(); }
  // With what `sync` says, as {every: 30, codec: int4}, in place of what it leaves open. InvalidArgument
  // where that is none of what it allows.
  Result<Job> with_chosen_rounds(const std::string& sync) const;
  // The columns of the data that it names, each once.
  std::vector<std::string> columns() const;

  // The path of a term of the loss: "loss", or "loss[1]" where the file has a list.
  std::string loss_path(size_t term) const;
  // The place of the path, or of the nearest enclosing key that was written.
  Location where(std::string_view path) const;
  // "<place>: <what>", for what only the model or the data can tell.
  Error error(ErrorCode code, std::string_view path, const std::string& what) const;
  // steps, or floor(epochs * sample_count / batch_size). OutOfRange when that is none, with the place.
  Result<uint64_t> total_steps(uint64_t sample_count) const;
};

// Reads, applies the `--set a.b=v` in order, checks. Relative paths become relative to the file's folder, but
// an `output` that came from --set stays relative to the current directory. Errors tell every problem, a line
// each,
// "<file>:<line>:<column>: what, and what to try": InvalidArgument; NotFound when the first is a missing
// file; Unsupported when the first is something not implemented here; Unavailable, PermissionDenied for the
// job file itself.
Result<Job> load_job(const std::filesystem::path& path, std::span<const std::string> sets = {});

struct ParseOptions {
  std::string source = "job.yaml";
  std::filesystem::path folder;  // what relative paths are relative to
  bool check_files = true;       // whether files that are named must be there
};
Result<Job> parse_job(std::string_view text, std::span<const std::string> sets, const ParseOptions& options);

}  // namespace weft::configs
