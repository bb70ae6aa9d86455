// The thread that drives the backend, with those that wait for it: executors for the stages held, the tasks
// of each in the order in which they were given; those of a served model go first (turns.h). What a task made
// goes straight to the links; what a snapshot copied is hashed beside the next tasks. A device that works on
// after its calls return is waited for apart, so that it is given the next task meanwhile.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "compress/codec.h"
#include "net/loop.h"
#include "net/worker.h"
#include "peer/backend/backend.h"
#include "peer/machine/peer.h"
#include "peer/service/link_service.h"
#include "peer/service/serve_runner.h"
#include "peer/service/stage_runner.h"
#include "peer/service/turns.h"

namespace weft::peer {

class ComputeService {
 public:
  struct Options {
    std::function<Result<std::unique_ptr<Backend>>()> make_backend;  // called on the thread, once
    std::optional<Bytes> memory{};                                   // the most that the backend may take
    // Told of each task that was given to the device, on the thread: for measurements.
    std::function<void(const Task&, Instant began, Instant ended)> on_task{};
  };
  // A tensor of a snapshot or prediction, and its bytes by hash.
  struct Hashed {
    proto::TensorReference reference;
    net::SharedBytes bytes;
  };
  // On the owner's loop, in order; of a stage none after drop(), but that the device is gone (DeviceLost).
  struct Handlers {
    std::function<void(const Status& made)> on_backend;
    std::function<void(uint64_t generation, const Result<RunnerSize>& made)> on_runner;
    std::function<void(uint64_t generation, const Task&, const Result<TaskOutcome>&)> on_done;
    std::function<void(uint64_t generation, const Task&, std::vector<Hashed>)> on_hashed;
    // Instead of on_hashed, of a snapshot: a tensor that is not finite (dag/finite.h). Instead of on_done,
    // where replicas agree: what would be agreed is not.
    std::function<void(uint64_t generation, const Task&, const dag::StateKey&)> on_not_finite{};
    std::function<void(const Status& answered)> on_device;
  };
  // The links must outlive it.
  ComputeService(net::Loop& owner, LinkService& links, Options options, Handlers handlers);
  // On the owner's thread, after the task at hand; nothing is told afterwards. Where the device does not
  // answer that is never: see rest().
  ~ComputeService();

  // On the owner's thread. `blobs`: of the stage's tensors, by hash.
  void make(uint64_t generation, std::shared_ptr<const proto::AssignStage> assignment,
            std::map<Digest, net::SharedBytes> blobs);
  // REQUIRES: the stage was made, and not dropped since.
  void run(uint64_t generation, const Task& task, StageRunner::Inputs inputs);
  // A follower's, once it was made. `blobs`: as of make().
  void load(uint64_t generation, std::map<Digest, net::SharedBytes> blobs);
  // For the entry of a served model: taken up with the next of its tasks. REQUIRES: as run().
  using Asked = decltype(PassRequest::what);
  void request(uint64_t generation, Asked what);
  // For ParkRunner and TakeRunner. REQUIRES: it was made, and not dropped since.
  void park(uint64_t generation);
  void take_over(uint64_t generation, uint64_t from, std::shared_ptr<const proto::AssignStage> assignment);
  void drop(uint64_t generation);  // after the task at hand; nothing for a stage that is not there
  void ask();                      // on_device once all that the device was given is done, dropped or not

  // Drops all stages, lets the backend go, and says whether all that is left to do was done within that time.
  // If not, a thread waits for the device and may do so for ever: then the process ends without destroying
  // this. Nothing may be asked afterwards.
  bool rest(Duration within);

 private:
  struct Stage;
  using StagePtr = std::shared_ptr<Stage>;
  using Submitted = StageRunner::Submitted;

  void tell(const StagePtr& stage, std::function<void(const Handlers&)> what);
  void tell_always(std::function<void(const Handlers&)> what) { tell(nullptr, std::move(what)); }
  void in_turn(const Stage& stage, std::function<void()> what);
  // Behind what is under way on the threads that use the device; on the last of them.
  void after_all(std::function<void()> what);
  // On the thread.
  Result<RunnerSize> make_runner(const StagePtr& stage, const StageRunner::TensorSource& tensors);
  void run_pass(const StagePtr& stage, const Task& task, StageRunner::Inputs inputs);
  void run_now(const StagePtr& stage, const Task& task, const StageRunner::Inputs& inputs);
  // There, or on the one that waits.
  void finish(const StagePtr& stage, const Task& task, Submitted submitted);
  void end(const StagePtr& stage, const Task& task, const Result<TaskOutcome>& outcome);
  Result<TaskOutcome> take(const StagePtr& stage, const Task& task, Submitted& submitted);
  void send(const StagePtr& stage, const proto::EdgeEnd& end, proto::TensorHeader header, dag::Tensor tensor);
  void send(const StagePtr& stage, SentShare& share);
  void send_sum(const StagePtr& stage, SentShare share);
  void hash(const StagePtr& stage, const Task& task, std::vector<Submitted::Named> tensors);

  net::Loop& owner_;
  LinkService& links_;
  const Options options_;
  const std::shared_ptr<const Handlers> handlers_;  // the owner's loop holds it weakly
  std::map<uint64_t, StagePtr> stages_;             // by generation
  std::unique_ptr<Backend> backend_;                // made, used and destroyed on compute_
  Turns turns_;                                     // of compute_
  std::unique_ptr<net::Worker> compute_ = std::make_unique<net::Worker>();
  std::unique_ptr<net::Worker> wait_ = std::make_unique<net::Worker>();
  std::unique_ptr<net::Worker> hash_ = std::make_unique<net::Worker>();
  // Makes payloads beside the tasks, in turn, on a thread that is there when a stage first needs it.
  class Encoder {
   public:
    void post(std::function<void(compress::Scratch&)> what) {  // by compute_ or wait_
      std::call_once(made_, [this] { thread_ = std::make_unique<net::Worker>(); });
      thread_->post([this, what = std::move(what)] { what(scratch_); });
    }

   private:
    compress::Scratch scratch_;
    std::once_flag made_;
    std::unique_ptr<net::Worker> thread_;
  };
  Encoder encoder_, sum_encoder_;  // of what other stages wait for; of sums of gradients
};

}  // namespace weft::peer
