// A module as another build of weft would have it.
#include "peer/backend/module.h"

extern "C" __attribute__((visibility("default"))) const weft::peer::BackendModule weft_backend_module;
const weft::peer::BackendModule weft_backend_module{weft::peer::BackendModule::kFormat,
                                                    "weft 0.0.0 of long ago", nullptr};
