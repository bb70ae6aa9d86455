// What `weft ui` shows, brought by the means of every other command: a broker by token and pinned key, served
// models by the OpenAI API.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "cli/api_client.h"
#include "cli/client.h"
#include "ui/broker_view.h"

namespace weft::cli {

std::shared_ptr<ui::BrokerView> make_broker_view(std::unique_ptr<BrokerAccess> access,
                                                 const BrokerAddress& address);
// Errors as of make_client().
Result<std::shared_ptr<ui::ModelView>> make_model_view(const ApiClientOptions& options);

}  // namespace weft::cli
