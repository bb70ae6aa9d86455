// How a simulated stage whose replica adds each step's gradients comes to the step's: as peer/service/
// gradient_exchange.h does, on hashes. A sum is a chain of its terms, so that their order tells.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "peer/machine/gradient_sums.h"
#include "peer/machine/task.h"
#include "sim/agreement.h"

namespace weft::sim {

class HashSums {
 public:
  using Sent = HashAgreement::Sent;
  explicit HashSums(std::shared_ptr<const proto::AssignStage> assignment);  // with exact terms

  bool owns(const std::string& parameter) const { return tensors_.at(parameter).summed.is_ours; }
  // A microbatch's gradient. What is complete with it, and added up elsewhere, is sent.
  void add(const std::string& parameter, const peer::MicrobatchKey& key, uint64_t gradient,
           std::vector<Sent>& sent);
  // What the stage owns: all ranges, in their order. Internal: one has not come, or twice.
  Result<uint64_t> add_up(const std::string& parameter, const std::vector<HashShare>& ranges);
  // What the owner has made of it, for each other replica.
  void send(const std::string& parameter, uint64_t step, uint64_t value, std::vector<Sent>& sent) const;
  // What another owner sent. Internal: nothing.
  Result<uint64_t> taken(const std::string& parameter, const std::vector<HashShare>& sums) const;

 private:
  struct Tensor {
    peer::SummedTensor summed{};
    std::map<uint32_t, uint64_t> ranges{};  // that this replica computes, as far as it has
    std::map<uint32_t, uint64_t> own{};     // of an owned one, those that are complete
  };
  Sent packet(const Tensor& tensor, uint64_t step, uint32_t range, bool is_sum, uint32_t to,
              uint64_t value) const;

  std::shared_ptr<const proto::AssignStage> assignment_;
  std::map<std::string, Tensor> tensors_;
};

}  // namespace weft::sim
