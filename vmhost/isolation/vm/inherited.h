/* What a thread of a VM inherits from the host's thread that starts it, and must not keep. */
#ifndef VMH_INHERITED_H
#define VMH_INHERITED_H

/* First on a new thread of a VM. */
void vmh_inherited_undo(void);

#endif
