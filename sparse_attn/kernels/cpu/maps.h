// Table of the mappings, with the names of sparse_attn/mappings.
#pragma once
#include "adaptive.h"
#include "floors.h"

template <class T> struct Few {  // functions for only the scores of at least `floor`
  T (*floor)(Row<T> &);
  void (*forward)(Row<T> &);
  T (*backward)(Row<T> &);
  bool all;  // whether all of them have a slope, even without a share
};

template <class T> struct Map {
  const char *name;
  void (*forward)(Row<T> &);
  T (*backward)(Row<T> &);
  Few<T> few;  // null if other scores have a slope
  bool parts;   // whether `backward` takes parts of a row
  Pull<T> (*pull)(Row<T> &, T);  // gradients that only the whole row gives, or null
};

#define SHARE(name, Type) {name, share_forward<T, Type>, share_backward<T, Type>, {}, true, nullptr}
#define ALONE(name, Type) {name, alone_forward<T, Type>, alone_backward<T, Type>, {}, true, nullptr}
#define SPARSE(name, how) \
  {name, sparsemax_forward<T, Rescale::how>, sparsemax_backward<T, Rescale::how>, {}, false, \
   nullptr}
// with its floor, and the mapping on the scores above the floor
#define SHARE_FEW(name, Type, floor, Then)                      \
  {name,                                                        \
   share_forward<T, Type>,                                      \
   share_backward<T, Type>,                                     \
   {floor<T>, share_forward<T, Then>, share_backward<T, Then>,  \
    std::is_same_v<Then<T>, RSoftmax<T>>},                      \
   true,                                                        \
   Type<T>::by_entries ? share_pull<T, Type> : nullptr}
#define PROJECT(name, forward, backward, floor) \
  {name, forward, backward, {floor<T>, forward, backward, false}, false, nullptr}
template <class T> using Sigsoftmax = Sigmoid<T, true>;
template <class T> using SigmoidOnly = Sigmoid<T, false>;

template <class T> const Map<T> *find_map(const char *name) {
  static const Map<T> maps[] = {
      SHARE("softmax", Softmax),
      SHARE("sigsoftmax", Sigsoftmax),
      SHARE("taylor-softmax", Taylor),
      SHARE("spherical-softmax", Spherical),
      SHARE("softmax-abs", SoftmaxAbs),
      SHARE_FEW("normalized-relu", Relu, positive_floor, Relu),
      SHARE("normalized-sigmoid", SigmoidOnly),
      SHARE_FEW("t-softmax", TSoftmax, t_floor, TSoftmax),
      SHARE_FEW("r-softmax", RSoftmax, r_floor, RSoftmax),
      SHARE_FEW("top-p-softmax", TopP, top_p_floor, TopP),
      SHARE_FEW("threshold-softmax", Threshold, threshold_floor, Softmax),
      SHARE_FEW("max-gap", MaxGap, gap_floor, MaxGap),
      {"adaptive-temperature", share_forward<T, Adaptive>, adaptive_backward<T>, {}, false,
       nullptr},
      ALONE("sigmoid", Sigmoid1),
      ALONE("relu", Relu1),
      {"softpick", softpick_forward<T>, softpick_backward<T>, {}, false, nullptr},
      {"clipped-softmax", clipped_forward<T>, clipped_backward<T>, {}, false, nullptr},
      PROJECT("sparsemax", (sparsemax_forward<T, Rescale::none>),
              (sparsemax_backward<T, Rescale::none>), sparsemax_floor),
      PROJECT("sparsegen", (sparsemax_forward<T, Rescale::gen>),
              (sparsemax_backward<T, Rescale::gen>), sparsegen_floor),
      SPARSE("sparsecone", cone),
      SPARSE("sparsehourglass", hourglass),
      PROJECT("entmax", entmax_forward<T>, entmax_backward<T>, entmax_floor),
  };
  for (const Map<T> &map : maps)
    if (!std::strcmp(map.name, name)) return &map;
  return nullptr;
}
