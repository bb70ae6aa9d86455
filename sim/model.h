// The simulated jobs: a chain of layers, with the real graphs (differentiated, lowered, split), what the
// plain loop over the whole graph makes of it, and the assignments that a planner would make.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "broker/place/assembly.h"
#include "sim/arithmetic.h"

namespace weft::sim {

// What a submission stands for.
struct JobSpec {
  uint64_t seed = 0;
  uint32_t layers = 4;
  int64_t width = 16;  // of a layer: its tensor takes 4 width^2 bytes
  uint32_t stages = 2;
  bool any_stages = false;  // goes on in fewer, when there are no more peers
  bool wraps = false;       // the first stage owns the last layer too
  bool predicts = false;
  uint32_t microbatches = 4, microbatch_size = 4;
  uint64_t steps = 20;
  uint32_t slots = 0;  // 0: sgd, 1: with momentum, 2: adam
  double clip_norm = 0;
  uint64_t evaluate_every = 0;
  uint32_t forward_microbatches = 0;
  std::optional<uint64_t> checkpoint_steps;
  std::optional<Duration> checkpoint_every;
  Duration op{};              // of a device of speed 1000
  int64_t data_bytes = 4000;  // of a microbatch
  bool stop = false;          // its user stops it half way

  // Of replicas with local steps, which come and go where there is a maximum; `every` 0: one pipeline.
  uint64_t every = 0;
  uint32_t replicas = 1, replicas_max = 0;
  bool has_shares = false;  // of a round, where not all make as many steps
  struct Agreement {
    bool is_lossy = false;           // what they tell each other
    bool averages = false;           // their outer rule; else it has a momentum
    uint64_t settle_every = 1;       // rounds; more than 1: they overlap
    uint32_t fragments = 1;          // of these
    bool leaves_every_open = false;  // the first plan chooses it
  } agreement{};

  // Of replicas that add each step's gradients: at most so many, in as many ranges; 1: one pipeline.
  uint32_t ranges = 1;
  bool shares_slots = false;  // of these: a parameter's owner alone has its slots

  bool has_replicas() const { return every > 0; }
  bool is_exact() const { return ranges > 1; }
};

// The graphs of one shape of model and their split: made once for all seeds.
struct ModelGraphs {
  struct Program {
    std::shared_ptr<const dag::Graph> graph;  // before lowering
    std::shared_ptr<const HashProgram> whole;
    std::vector<broker::StagePiece> pieces;
  };
  std::map<proto::ProgramKind, Program> programs;
  std::vector<std::string> parameters;  // in the whole graph's order
  uint32_t stage_count = 0;
};
std::shared_ptr<const ModelGraphs> graphs_of(const JobSpec& job);
// The hashes of a stage's program, as planned.
std::shared_ptr<const HashProgram> hashes_of(const dag::Graph& graph);

// The whole job, trained by one machine in one loop: what the cluster's state must be after each step.
class Alone {
 public:
  explicit Alone(const JobSpec& job);

  using State = std::map<std::string, TensorState>;
  struct Step {
    double loss = 0;  // mean over microbatches
    double norm = 0;
    State state;  // after it
  };
  const Step& after(uint64_t step);  // 0: as submitted
  // A step from there, with the samples of that one; `number`: as its update has it.
  Step make_step(const State& before, uint64_t samples_of, uint64_t number);
  std::map<std::string, double> evaluation(uint64_t step) { return evaluate(after(step).state); }
  std::map<std::string, double> evaluate(const State& state);
  uint64_t prediction(uint32_t microbatch);

 private:
  void forward(const HashProgram& program, proto::ProgramKind kind, const State& state, uint64_t position,
               std::vector<uint64_t>& values);

  JobSpec job_;
  std::shared_ptr<const ModelGraphs> graphs_;
  std::vector<Step> steps_;
};

uint64_t train_position(const JobSpec& job, uint64_t step, uint32_t microbatch);
uint64_t forward_position(const JobSpec& job, uint32_t microbatch);

}  // namespace weft::sim
