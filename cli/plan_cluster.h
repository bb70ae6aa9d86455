// The devices that a plan is made for: those of a cluster file or those that a broker has, and devices of the
// catalogue put beside them.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/broker_address.h"
#include "plan/cluster.h"
#include "proto/messages.h"

namespace weft::cli {

struct PlanCluster {
  std::string source;  // where it comes from, for people
  plan::ClusterView view;
  std::vector<std::string> notes;    // what was assumed
  std::vector<std::string> types{};  // by device: of the catalogue; empty where that says nothing of it
};

// `additions`: "TYPE@REGION", a device of the catalogue in a region that the links are known of. Errors:
// those of the file; InvalidArgument and NotFound for an addition; Infeasible for a cluster without devices.
Result<PlanCluster> cluster_of_file(const std::filesystem::path& path,
                                    std::span<const std::string> additions);

// The peers that a broker would give a job to. Links are what the broker believes of them; where it says
// nothing, and to what is added, they are assumed by region.
Result<PlanCluster> cluster_of_broker(const BrokerOptions& broker, std::span<const std::string> additions);
Result<PlanCluster> cluster_of_peers(std::span<const proto::PeerStatus> peers, const std::string& source,
                                     std::span<const std::string> additions,
                                     const proto::LinkList& links = {});

// Devices by region, regions in the order in which they first appear.
std::vector<std::vector<uint32_t>> by_region(const plan::ClusterView& cluster);

}  // namespace weft::cli
