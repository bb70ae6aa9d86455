#include "peer/service/updated_weights.h"

#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "dag/state.h"

namespace weft::peer {
namespace {

// A download that several read.
class ReadByAll {
 public:
  explicit ReadByAll(std::unique_ptr<Download> download) : download_(std::move(download)) {}
  Result<dag::Tensor> tensor() {
    const std::lock_guard lock(mutex_);
    if (!tensor_) tensor_ = download_->take();
    return *tensor_;
  }

 private:
  std::mutex mutex_;
  std::unique_ptr<Download> download_;
  std::optional<Result<dag::Tensor>> tensor_{};
};

class OneOfAll final : public Download {
 public:
  explicit OneOfAll(std::shared_ptr<ReadByAll> all) : all_(std::move(all)) {}
  Result<dag::Tensor> take() override { return all_->tensor(); }

 private:
  std::shared_ptr<ReadByAll> all_;
};

}  // namespace

std::optional<std::set<std::string, std::less<>>> updated_here(const proto::AssignStage& assign) {
  if (!shares_slots(assign)) return std::nullopt;
  const std::vector<std::string> updated = updated_parameters(assign);
  return std::set<std::string, std::less<>>(updated.begin(), updated.end());
}

Status send_weight(const proto::AssignStage& assign, const proto::AgreedTensor& tensor,
                   const dag::TensorSpec& spec, uint64_t step, const State& state,
                   std::vector<SendingShare>& sent) {
  WEFT_TRY(auto download, state.begin_read(dag::of_initializer(tensor.name)));
  const auto all = std::make_shared<ReadByAll>(std::move(download));
  for (uint32_t replica = 0; replica < tensor.stages.size(); ++replica)
    if (replica != assign.seat.replica)
      sent.push_back({sum_share(assign, tensor, spec, step, 0, /*is_sum=*/true, replica),
                      std::make_unique<OneOfAll>(all)});
  return {};
}

Status take_weight(const proto::AgreedTensor& tensor, const AgreedShare& weight, State& state) {
  return state.write(dag::of_initializer(tensor.name), weight.tensor);
}

}  // namespace weft::peer
